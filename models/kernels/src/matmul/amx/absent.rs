//! Placeholder for systems on which tiles are not used.

use super::{Elements, Row, Sides, TileUnit};

/// Has no value, since there are no tiles.
#[derive(Debug, Clone, Copy)]
pub(in crate::matmul) enum Amx {}

pub(in crate::matmul) enum Unit {}

impl Amx {
    pub(in crate::matmul) fn new() -> Option<Self> {
        None
    }

    pub(in crate::matmul) fn with_tiles(self, _: usize, _: Elements, _: impl FnOnce(&mut Unit)) {
        match self {}
    }
}

impl TileUnit for Unit {
    fn two_by_two(&mut self, _: Sides<'_>, _: [usize; 2], _: usize, _: &mut [Row]) {
        match *self {}
    }

    fn one_by_four(&mut self, _: Sides<'_>, _: usize, _: &mut [Row]) {
        match *self {}
    }
}
