//! Functions of single numbers: what is applied last.

use super::{Epilogue, Sink};
use crate::launch::KernelParam;
use crate::layout::Coord;
use crate::{math, ptx};

/// An element-wise function, chosen when the kernel is launched.
///
/// The choice is the same for all threads, so it costs a branch each time it is applied and no instance of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Activation(u32);

impl Activation {
    /// The identity.
    pub const NONE: Self = Self(0);
    /// [`math::relu`].
    pub const RELU: Self = Self(1);
    /// [`math::gelu_erf`].
    pub const GELU_ERF: Self = Self(2);
    /// [`math::gelu_tanh`].
    pub const GELU_TANH: Self = Self(3);
    /// [`math::silu`].
    pub const SILU: Self = Self(4);

    /// As a floor: of ReLU 0, of the identity −∞, of other functions none.
    #[inline(always)]
    #[must_use]
    pub fn as_floor(self) -> Option<Floor> {
        match self {
            Self::RELU => Some(Floor(0.0)),
            Self::NONE => Some(Floor(f32::NEG_INFINITY)),
            _ => None,
        }
    }

    /// Makes of numbers the slopes there: [`math::silu_slope`] and the like, and ones for the identity.
    #[inline(always)]
    pub fn slopes<const N: usize>(self, values: &mut [f32; N]) {
        // Opaque: a table of jumps would be read from memory each time.
        let is = |function: Self| ptx::opaque(self.0) == function.0;
        if is(Self::GELU_TANH) {
            of_each(values, math::gelu_tanh_slope);
        } else if is(Self::SILU) {
            of_each(values, math::silu_slope);
        } else if is(Self::GELU_ERF) {
            of_each(values, math::gelu_erf_slope);
        } else if is(Self::RELU) {
            of_each(values, math::relu_slope);
        } else {
            for value in values.iter_mut() {
                *value = 1.0;
            }
        }
    }

    /// As [`of`](Function::of), in place, where the choice does not become a table of jumps. At −∞ it is the limit.
    #[inline(always)]
    pub fn apply_in_place<const N: usize>(self, values: &mut [[f32; N]; 1]) {
        let is = |function: Self| ptx::opaque(self.0) == function.0;
        if is(Self::GELU_TANH) || is(Self::SILU) {
            // These are products with what is zero there.
            of_each(&mut values[0], |value| ptx::max_nan(value, -f32::MAX));
        }
        if is(Self::GELU_TANH) {
            GeluTanh.apply_to(values);
        } else if is(Self::SILU) {
            Silu.apply_to(values);
        } else if is(Self::GELU_ERF) {
            GeluErf.apply_to(values);
        } else if is(Self::RELU) {
            Relu.apply_to(values);
        }
    }
}

/// Applies `function` to each number of an array.
#[inline(always)]
fn of_each<const N: usize>(values: &mut [f32; N], function: impl Fn(f32) -> f32) {
    for value in values.iter_mut() {
        *value = function(*value);
    }
}

/// A function of single numbers.
pub trait Function: Copy {
    /// Applies it in place: an array that is returned would go through memory.
    fn apply_to<const N: usize>(self, values: &mut [[f32; N]]);

    /// Applies it in place to one array after the other, each of which it hands to `sink`.
    ///
    /// # Safety
    ///
    /// The sink may be called, once for each array in order.
    #[inline(always)]
    unsafe fn hand_over<const N: usize>(self, values: &mut [[[f32; 4]; N]], sink: &impl Sink<N>) {
        for (i, values) in values.iter_mut().enumerate() {
            self.apply_to(values);
            // SAFETY: the caller's promise.
            unsafe { sink.put(i, values) };
        }
    }

    /// Its values.
    #[inline(always)]
    #[must_use]
    fn of<const N: usize>(self, arguments: [f32; N]) -> [f32; N] {
        let mut values = [arguments];
        self.apply_to(&mut values);
        values[0]
    }
}

/// Applies `function` to each number.
#[inline(always)]
fn each<const N: usize>(values: &mut [[f32; N]], function: impl Fn(f32) -> f32) {
    for values in values.iter_mut() {
        for value in values.iter_mut() {
            *value = function(*value);
        }
    }
}

/// Applies `pair` to two numbers at a time, and `single` to the last one of each array if they are odd in number.
#[inline(always)]
fn each_pair<const N: usize>(
    values: &mut [[f32; N]],
    pair: impl Fn([f32; 2]) -> [f32; 2],
    single: impl Fn(f32) -> f32,
) {
    for values in values.iter_mut() {
        for i in 0..N / 2 {
            let [a, b] = pair([values[2 * i], values[2 * i + 1]]);
            values[2 * i] = a;
            values[2 * i + 1] = b;
        }
        if N % 2 == 1 {
            values[N - 1] = single(values[N - 1]);
        }
    }
}

/// What [`Activation`] chooses from, and how each is computed.
macro_rules! functions {
    ($($name:ident: $how:ident($($function:path),*);)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl Function for $name {
            #[inline(always)]
            fn apply_to<const N: usize>(self, values: &mut [[f32; N]]) {
                $how(values, $($function),*);
            }
        }
    )*};
}
functions! {
    Identity: each(core::convert::identity);
    Relu: each(math::relu);
    GeluErf: each(math::gelu_erf);
    GeluTanh: each_pair(math::gelu_tanh_2, math::gelu_tanh);
    Silu: each_pair(math::silu_2, math::silu);
}

impl Function for Activation {
    #[inline(always)]
    fn apply_to<const N: usize>(self, values: &mut [[f32; N]]) {
        match self {
            Self::RELU => Relu.apply_to(values),
            Self::GELU_ERF => GeluErf.apply_to(values),
            Self::GELU_TANH => GeluTanh.apply_to(values),
            Self::SILU => Silu.apply_to(values),
            _ => {}
        }
    }

    /// The choice stands once for all.
    #[inline(always)]
    unsafe fn hand_over<const N: usize>(self, values: &mut [[[f32; 4]; N]], sink: &impl Sink<N>) {
        // Opaque: a table of jumps would be read from memory each time.
        let is = |function: Self| ptx::opaque(self.0) == function.0;
        // SAFETY: the caller's promise.
        unsafe {
            if is(Self::GELU_TANH) {
                GeluTanh.hand_over(values, sink);
            } else if is(Self::SILU) {
                Silu.hand_over(values, sink);
            } else if is(Self::GELU_ERF) {
                GeluErf.hand_over(values, sink);
            } else if is(Self::RELU) {
                Relu.hand_over(values, sink);
            } else {
                Identity.hand_over(values, sink);
            }
        }
    }
}

/// The larger of a number and this one; NaN stays NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor(f32);

impl Function for Floor {
    #[inline(always)]
    fn apply_to<const N: usize>(self, values: &mut [[f32; N]]) {
        each(values, |value| ptx::max_nan(value, self.0));
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for Activation {}

impl Epilogue for Activation {
    type Column = ();
    type Row = ();

    #[inline(always)]
    unsafe fn column(&self, _: u32) {}

    #[inline(always)]
    unsafe fn row(&self, _: u32) {}

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, _: Coord, (): (), _: [(); N], accumulators: [f32; N]) -> [f32; N] {
        self.of(accumulators)
    }
}
