//! Repeats the layers of a model's steps on a GPU as CUDA graphs.
//!
//! The host needs longer to launch the kernels of a small step than the GPU to run them. A graph launches all
//! of them with one call. It repeats one shape of steps, for other rows, other keys and other tokens: those
//! are in tables that it reads.

#[cfg(not(feature = "cuda"))]
use candle_core::{Result, Tensor};

#[cfg(not(feature = "cuda"))]
use crate::ops::StepInputs;

#[cfg(feature = "cuda")]
pub(crate) use on_gpu::StepGraphs;

#[cfg(not(feature = "cuda"))]
pub(crate) struct StepGraphs;

#[cfg(not(feature = "cuda"))]
impl StepGraphs {
    pub(crate) fn new(_: &crate::ops::Placement) -> Self {
        Self
    }

    pub(crate) fn compute(
        &self,
        x: Tensor,
        _: impl FnOnce() -> Result<Option<StepInputs>>,
        layers: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        layers(x)
    }
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use std::cell::RefCell;

    use candle_core::{Result, Tensor};
    use ntl_core::failpoint;
    use ntl_cuda::{Graph, Recorder};

    use crate::gpu::count_replay;
    use crate::ops::own_kernels::OwnKernel;
    use crate::ops::{Placement, StepInputs, without_backtrace};

    /// Maximum number of shapes, and so of graphs. Each graph keeps the memory of one step's intermediate
    /// results: up to 7 MB for Llama 2 7B and 32 rows (calculated).
    const SHAPES_MAX: usize = 128;

    /// The failpoint before a computation that may be recorded.
    const RECORDING: &str = "cuda-graph-recording";

    /// The largest difference between a replay and the same step without it, relative to the largest number.
    /// Both launch the same kernels, so that they should be equal.
    const DIFFERENCE_MAX: f32 = 0.01;

    /// The graphs of one model.
    pub(crate) struct StepGraphs {
        /// Shapes of steps, the last one first; `None` if the model uses no graphs.
        shapes: RefCell<Option<Vec<KnownShape>>>,
        recorder: Recorder,
    }

    struct KnownShape {
        /// [`StepInputs::shape`].
        shape: Vec<usize>,
        stage: Stage,
    }

    enum Stage {
        Seen,
        Recorded(Graph),
        /// Its first replay was equal to the same step without it.
        Checked(Graph),
    }

    impl StepGraphs {
        pub(crate) fn new(place: &Placement) -> Self {
            // candle's operations, which replace a kernel that is off, cannot be recorded.
            let has_kernels = !OwnKernel::ALL.into_iter().any(OwnKernel::is_off);
            let is_on = place.cuda_graphs && place.device.is_cuda() && has_kernels;
            Self { shapes: RefCell::new(is_on.then(Vec::new)), recorder: Recorder::default() }
        }

        /// Returns `layers(x)`. `layers` may read the embeddings `x` f32 `[R, d_model]`, which it may
        /// overwrite, the tables of its inputs, and tensors that live as long as the model. `inputs` are
        /// `None` if a step cannot be repeated.
        pub(crate) fn compute(
            &self,
            x: Tensor,
            inputs: impl FnOnce() -> Result<Option<StepInputs>>,
            layers: impl Fn(Tensor) -> Result<Tensor>,
        ) -> Result<Tensor> {
            if !x.is_contiguous() {
                return layers(x);
            }
            let mut kept = self.shapes.borrow_mut();
            let Some(shapes) = kept.as_mut() else { return layers(x) };
            let Some(StepInputs { shape, tables }) = inputs()? else { return layers(x) };
            let index = shapes.iter().position(|known| known.shape == shape);
            let stage = index.map(|index| shapes.remove(index).stage);
            match self.next(stage, x, &tables, layers) {
                Ok((hidden, Ok(stage))) => {
                    shapes.truncate(SHAPES_MAX - 1);
                    shapes.insert(0, KnownShape { shape, stage });
                    Ok(hidden)
                }
                // Without the graphs, the next step may have enough memory.
                Err(error) => {
                    shapes.clear();
                    Err(error)
                }
                Ok((hidden, Err(reason))) => {
                    *kept = None;
                    tracing::warn!(reason, "the steps of a model are not replayed as CUDA graphs");
                    Ok(hidden)
                }
            }
        }

        /// Computes a step whose shape is at this stage. Returns its hidden states and the next stage, or why
        /// there can be none.
        fn next(
            &self,
            stage: Option<Stage>,
            x: Tensor,
            tables: &[Tensor],
            layers: impl Fn(Tensor) -> Result<Tensor>,
        ) -> Result<(Tensor, std::result::Result<Stage, String>)> {
            match stage {
                None => Ok((layers(x)?, Ok(Stage::Seen))),
                Some(Stage::Seen) => {
                    let (hidden, graph) = self.recorder.record(x, tables, |x| {
                        failpoint::check(RECORDING)?;
                        layers(x)
                    })?;
                    let graph = graph.map_err(|error| without_backtrace(error).to_string());
                    Ok((hidden, graph.map(Stage::Recorded)))
                }
                Some(Stage::Recorded(graph)) => {
                    let replayed = graph.replay(&x, tables)?;
                    let hidden = layers(x)?;
                    let is_same = are_close(&replayed, &hidden)?;
                    let stage = if is_same {
                        Ok(Stage::Checked(graph))
                    } else {
                        Err("a replay was wrong".to_owned())
                    };
                    Ok((hidden, stage))
                }
                Some(Stage::Checked(graph)) => {
                    count_replay();
                    Ok((graph.replay(&x, tables)?, Ok(Stage::Checked(graph))))
                }
            }
        }
    }

    fn are_close(a: &Tensor, b: &Tensor) -> Result<bool> {
        let [a, b] = [a, b].map(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
        let (a, b) = (a?, b?);
        let largest = b.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        let difference_max = DIFFERENCE_MAX * largest;
        let mut pairs = a.iter().zip(&b);
        let is_close = pairs.all(|(a, b)| a.to_bits() == b.to_bits() || (a - b).abs() <= difference_max);
        Ok(a.len() == b.len() && is_close)
    }
}
