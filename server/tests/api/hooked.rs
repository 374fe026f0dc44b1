//! A scripted model that calls functions of a test when its engine opens a context, steps or closes a
//! context.

use std::sync::mpsc;

use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Logits, ModelError, ModelInfo, OpenedContext,
    PrefillChunk, PrefillProgress, Row,
};
use ntl_core::scripted::{Script, ScriptedModel};

use crate::support::{PATIENCE, scripted};

pub(crate) struct Hooked {
    model: ScriptedModel,
    on_begin: Box<dyn FnMut(ContextRequest<'_>) + Send>,
    on_step: Box<dyn FnMut() -> Result<(), ModelError> + Send>,
    on_close: fn(),
    check_device: fn() -> Result<(), ModelError>,
}

impl Hooked {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            model: scripted(script),
            on_begin: Box::new(|_| {}),
            on_step: Box::new(|| Ok(())),
            on_close: || {},
            check_device: || Ok(()),
        }
    }

    pub(crate) fn on_begin(self, call: impl FnMut(ContextRequest<'_>) + Send + 'static) -> Self {
        Self { on_begin: Box::new(call), ..self }
    }

    pub(crate) fn on_step(self, call: impl FnMut() -> Result<(), ModelError> + Send + 'static) -> Self {
        Self { on_step: Box::new(call), ..self }
    }

    /// The same model, whose engine dies when its first request is over.
    pub(crate) fn mortal(self) -> Self {
        Self { on_close: || panic!("a panic that this test provokes, which no engine survives"), ..self }
    }

    /// The same model, whose device is lost in its first step.
    pub(crate) fn on_a_lost_device(self) -> Self {
        let check_device = || Err(ModelError::DeviceLost("scripted".into()));
        Self { check_device, ..self.on_step(|| Err(ModelError::Compute("scripted".into()))) }
    }
}

impl BatchModel for Hooked {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        (self.on_begin)(request);
        self.model.begin(request)
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        self.model.prefill(chunks)
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        (self.on_step)()?;
        self.model.step(rows)
    }

    fn check_device(&mut self) -> Result<(), ModelError> {
        (self.check_device)()
    }

    fn cache_cost(&self) -> CacheCost {
        self.model.cache_cost()
    }

    fn close(&mut self, context: ContextId) {
        (self.on_close)();
        self.model.close(context);
    }
}

/// The steps of a model of [`gated`]: they wait until this is dropped.
pub(crate) struct Gate {
    entered: mpsc::Receiver<()>,
    _pass: mpsc::Sender<()>,
}

impl Gate {
    /// Waits, off the runtime's threads, until a step has begun.
    pub(crate) async fn step_has_begun(self) -> Self {
        tokio::task::spawn_blocking(move || {
            self.entered.recv_timeout(PATIENCE).unwrap();
            self
        })
        .await
        .unwrap()
    }
}

/// Returns a model whose steps wait at a gate, until the gate is gone.
pub(crate) fn gated(script: Script) -> (Hooked, Gate) {
    let (entered, has_entered) = mpsc::channel();
    let (pass, may_pass) = mpsc::channel::<()>();
    let model = Hooked::new(script).on_step(move || {
        // Once the test has dropped its side, steps run freely.
        let _ = entered.send(());
        let _ = may_pass.recv();
        Ok(())
    });
    (model, Gate { entered: has_entered, _pass: pass })
}
