//! The layers of a model that adapters can change.

use std::cell::RefCell;

use crate::ops::{Linear, Placement, Site, StoredLinear, Weight};

/// A linear layer, in which several modules of the checkpoint may be combined.
#[derive(Debug)]
pub(super) struct Layer {
    /// The modules whose outputs are side by side.
    pub(super) modules: Vec<Module>,
    /// Number of inputs.
    pub(super) inputs: usize,
    /// Widths of the parts of its output.
    pub(super) widths: Vec<usize>,
    /// Whether adapters can replace its only module.
    pub(super) is_replaceable: bool,
    pub(super) has_bias: bool,
}

#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) outputs: usize,
}

impl Layer {
    fn new(stored: &[StoredLinear], widths: &[usize]) -> Self {
        let mut modules = Vec::new();
        for StoredLinear { module, weight, .. } in stored {
            modules.push(Module { name: module.clone(), outputs: weight.dims()[0] });
        }
        Self {
            modules,
            inputs: stored[0].weight.dims()[1],
            widths: widths.to_vec(),
            is_replaceable: false,
            has_bias: stored[0].bias.is_some(),
        }
    }

    /// Returns the numbers of outputs and inputs of a module, if the layer contains it.
    pub(super) fn shape(&self, name: &str) -> Option<[usize; 2]> {
        let module = self.modules.iter().find(|module| module.name == name)?;
        Some([module.outputs, self.inputs])
    }
}

/// Collects the layers while a model is loaded.
#[derive(Default)]
pub(crate) struct AdaptableLayers(RefCell<Vec<Layer>>);

impl AdaptableLayers {
    /// Combines stored layers, as [`Linear::new`] does, to one that adapters can change.
    pub(crate) fn combine<const P: usize>(
        &self,
        stored: &[StoredLinear],
        widths: [usize; P],
        place: &Placement,
    ) -> candle_core::Result<Linear<P>> {
        let site = self.add(Layer::new(stored, &widths));
        Ok(Linear::new(stored, widths, place)?.adaptable(site))
    }

    /// Creates a layer that predicts labels, which adapters can change or replace.
    pub(crate) fn of_labels(&self, stored: StoredLinear, place: &Placement) -> candle_core::Result<Linear> {
        let stored = [stored];
        let widths = [stored[0].weight.dims()[0]];
        let site = self.add(Layer { is_replaceable: true, ..Layer::new(&stored, &widths) });
        Ok(Linear::new(&stored, widths, place)?.adaptable(site))
    }

    /// Creates the output layer `module` from a weight `[outputs, inputs]` that may be shared.
    pub(crate) fn head(&self, module: &str, weight: Weight, [outputs, inputs]: [usize; 2]) -> Linear {
        let modules = vec![Module { name: module.to_owned(), outputs }];
        let widths = vec![outputs];
        let site = self.add(Layer { modules, inputs, widths, is_replaceable: false, has_bias: false });
        Linear::plain(weight, [outputs]).adaptable(site)
    }

    fn add(&self, layer: Layer) -> Site {
        let mut layers = self.0.borrow_mut();
        layers.push(layer);
        Site(layers.len() - 1)
    }

    /// Returns the layers, by site.
    pub(super) fn into_layers(self) -> Vec<Layer> {
        self.0.into_inner()
    }
}
