//! What is chosen by a model or by what was kept: for each kind of operation its tiles, and what the choice depends on.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::DType;
use crate::ops::{linear, scaled};

/// What the choice of a kernel depends on: a problem, and the limits of a device.
pub(crate) trait Choice {
    /// What there is to choose from.
    type Tile: Copy + Debug + Display + FromStr + PartialEq;

    /// What a tile is kept under: all that the problem is as Rust prints it, so that what a later version adds changes every key.
    fn key(&self) -> String;

    /// The tiles that compute the problem on the device.
    fn candidates(&self) -> Vec<Self::Tile>;

    /// The one that the cost model chooses; `None` if there are none.
    fn model(&self) -> Option<Self::Tile>;
}

/// The choice for a linear layer or a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductChoice {
    pub(crate) problem: linear::select::Problem,
    pub(crate) limits: linear::select::Limits,
}

impl Choice for ProductChoice {
    type Tile = linear::Tile;

    fn key(&self) -> String {
        format!("linear {:?}", self.problem)
    }

    fn candidates(&self) -> Vec<Self::Tile> {
        linear::select::candidates(&self.problem, &self.limits).collect()
    }

    fn model(&self) -> Option<Self::Tile> {
        linear::select::select(&self.problem, &self.limits)
    }
}

/// The choice for a scaled linear layer. The model asks for the sizes alone; measurements are told apart by the output's type, and by whether
/// there is more than scales, a bias and an activation, as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScaledChoice {
    pub(crate) output: DType,
    pub(crate) has_terms: bool,
    pub(crate) problem: scaled::select::Problem,
    pub(crate) limits: scaled::select::Limits,
}

impl Choice for ScaledChoice {
    type Tile = scaled::Fp8Tile;

    fn key(&self) -> String {
        let Self { output, has_terms, problem, .. } = self;
        format!("linear_scaled {output:?} terms: {has_terms} {problem:?}")
    }

    fn candidates(&self) -> Vec<Self::Tile> {
        scaled::select::candidates(&self.problem, &self.limits).collect()
    }

    fn model(&self) -> Option<Self::Tile> {
        scaled::select::select(&self.problem, &self.limits)
    }
}
