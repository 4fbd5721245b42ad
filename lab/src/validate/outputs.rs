//! What an operation that takes the terms of linear layers writes: y, the ReLU mask and the pre-activation, in place on the device,
//! and what is asked of each.

use half::{bf16, f16};
use ndarray::Array2;
use warpsmith::device::Device;
use warpsmith::error::Result;
use warpsmith::tensor::{Element, Tensor};
use warpsmith::weights::FloatElement;

use super::load::Output;
use super::placed::{Placed, Written};
use super::tally::Tally;
use crate::bound::{ErrorModel, Expected};
use crate::cases::{Placement, Terms};

/// What the memory of an output, and beside it, is filled with: a number that no validated result is.
const SENTINEL: f32 = -24576.0;
/// The same for a mask.
const MASK_SENTINEL: u32 = 0xa5c3_96e1;

/// An output type whose numbers can be widened and compared bit by bit.
pub(super) trait Bits: Copy {
    fn bits(self) -> u32;
    fn widen(self) -> f64;
}

impl Bits for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

impl Bits for f16 {
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

impl Bits for bf16 {
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
    fn widen(self) -> f64 {
        self.into()
    }
}

/// Memory for what is written, with the residual that is read beside it or where y is.
pub(super) struct Outputs<O: Element> {
    pub(super) y: Tensor<O>,
    pub(super) residual: Option<Tensor<O>>,
    pub(super) mask: Option<Tensor<u32>>,
    pub(super) preactivation: Option<Tensor<O>>,
    y_placed: Placed<O>,
    mask_placed: Option<Placed<u32>>,
    preactivation_placed: Option<Placed<O>>,
}

impl<O: FloatElement> Outputs<O> {
    /// For matrices of `rows` × `n` elements, one below the other, in the shape that `full` gives for so many columns.
    pub(super) fn new(
        device: &Device,
        terms: &Terms,
        y: Placement,
        residual: Option<&Array2<O>>,
        (rows, n): (usize, usize),
        full: impl Fn(usize) -> Vec<usize>,
    ) -> Result<Self> {
        let place = |held, beside, placement| Placed::new(device, held, (rows, n), beside, placement);
        let (sentinel, nan) = (O::round(SENTINEL.into()), O::round(f64::NAN));
        let (held, apart) = if terms.in_place { (residual, None) } else { (None, residual) };
        let y_placed = place(held, sentinel, y)?;
        let y = y_placed.tensor(&full)?;
        let apart = apart.map(|residual| place(Some(residual), nan, terms.beside)).transpose()?;
        let apart = apart.map(|placed| placed.tensor(&full)).transpose()?;
        let residual = apart.or_else(|| held.map(|_| y.clone()));
        let preactivation_placed =
            terms.preactivation.then(|| place(None, sentinel, terms.beside)).transpose()?;
        let preactivation = preactivation_placed.as_ref().map(|placed| placed.tensor(&full)).transpose()?;
        let words = (rows, n.div_ceil(32));
        let place_mask = || Placed::new(device, None, words, MASK_SENTINEL, terms.beside);
        let mask_placed = terms.mask.then(place_mask).transpose()?;
        let mask = mask_placed.as_ref().map(|placed| placed.tensor(&full)).transpose()?;
        Ok(Self { y, residual, mask, preactivation, y_placed, mask_placed, preactivation_placed })
    }

    /// All memory that may be written, with what is beside the results.
    pub(super) fn memory(&self) -> Result<Vec<Output>> {
        let mut all = vec![Output::new("y", self.y_placed.all())?];
        all.extend(self.mask_placed.as_ref().map(|mask| Output::new("mask", mask.all())).transpose()?);
        let preactivation = self.preactivation_placed.as_ref();
        all.extend(preactivation.map(|placed| Output::new("preactivation", placed.all())).transpose()?);
        Ok(all)
    }

    pub(super) fn read(self) -> Result<Results<O>> {
        Ok(Results {
            y: self.y_placed.read()?,
            mask: self.mask_placed.map(Placed::read).transpose()?,
            preactivation: self.preactivation_placed.map(Placed::read).transpose()?,
        })
    }
}

/// What was written.
pub(super) struct Results<O> {
    y: Written<O>,
    mask: Option<Written<u32>>,
    preactivation: Option<Written<O>>,
}

impl<O: FloatElement + Bits> Results<O> {
    /// The bits of all of it, row by row: of y, of the pre-activation and the mask.
    pub(super) fn bits(&self) -> Vec<u32> {
        let z = self.preactivation.iter().flat_map(|z| z.inside().mapv(O::bits));
        let mask = self.mask.iter().flat_map(|mask| mask.inside().to_owned());
        self.y.inside().mapv(O::bits).into_iter().chain(z).chain(mask).collect()
    }

    /// Judges what was written of element `at`.
    pub(super) fn judge(&self, tally: &mut Tally, at: [usize; 2], model: &ErrorModel, expected: Expected) {
        tally.outcome.compared += 1;
        let rounded = |value: f64| [value, O::round(value).widen()];
        let judge = |got| model.judge(got, expected);
        tally.add(at, self.y.inside()[at].widen(), rounded(expected.y), judge);
        if let Some(z) = &self.preactivation {
            let judge = |got| model.judge_argument(got, expected);
            tally.add(at, z.inside()[at].widen(), rounded(expected.z), judge);
        }
        if let Some(mask) = &self.mask {
            let [row, column] = at;
            let bit = mask.inside()[[row, column / 32]] >> (column % 32) & 1 == 1;
            // Where rounding may decide, either will do.
            let open = !tally.outcome.exact && expected.z.abs() <= model.argument_error(expected);
            tally.outcome.failures += usize::from(bit != (expected.z > 0.0) && !open);
        }
    }

    /// Judges what has no element: bits of the mask past column `n`, and whatever is beside the outputs.
    pub(super) fn judge_rest(&self, tally: &mut Tally, n: usize) {
        if let Some(mask) = &self.mask
            && !n.is_multiple_of(32)
        {
            let last = mask.inside().column(n / 32).to_owned();
            tally.outcome.failures += last.iter().filter(|&&word| word >> (n % 32) != 0).count();
        }
        let mask = self.mask.as_ref().map_or(0, Written::strays);
        let preactivation = self.preactivation.as_ref().map_or(0, Written::strays);
        tally.outcome.stray_writes = self.y.strays() + mask + preactivation;
    }
}
