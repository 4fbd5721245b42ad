//! The gradients of generated updates.

use candle_core::Tensor;
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::update::{UpdateGradientOutputs, UpdateGradientPlaces};
use warpsmith::ops::{self, Activation};

use super::{Layout, UpdateElement, Views};
use crate::error::Result;
use crate::memory::{Call, Fresh, finished, open};

/// What the gradients are computed from.
pub(super) struct Backward {
    pub(super) call: Call,
    pub(super) layout: Layout,
    pub(super) preactivation: Option<Tensor>,
    /// Whether each operand is tracked.
    pub(super) wanted: Vec<bool>,
}

impl Backward {
    /// The gradients of all operands that are tracked.
    pub(super) fn run<T: UpdateElement>(&self, y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let layout = &self.layout;
        let count = layout.first() + 3 * layout.scalings.len();
        let names = ["x", "w", "bias"];
        let of_base = [true, layout.has_base, layout.has_bias];
        let mut named: Vec<&'static str> =
            names.into_iter().zip(of_base).filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect();
        layout.scalings.iter().for_each(|_| named.extend(["v", "codes", "u"]));
        let mut operands: Vec<_> =
            named.into_iter().enumerate().map(|(index, name)| (name, self.call.operand(index))).collect();
        operands.push(("dy", dy));
        let is_relu = layout.activation == Activation::Relu;
        let z = self.preactivation.as_ref().or(is_relu.then_some(y));
        operands.extend(z.map(|z| ("z", z)));
        let call = Call::new("update_backward", &operands)?.with_contiguous_rows()?;

        let mut gradients: Vec<Option<Fresh<T>>> = (0..count)
            .map(|index| call.wanted(self.wanted[index], self.call.operand(index).shape()))
            .collect::<Result<_>>()?;
        let has_dw = layout.has_base && self.wanted[1];
        let needs_dz = has_dw && layout.activation != Activation::None;
        let mut dz = call.wanted::<T>(needs_dz, dy.shape())?;
        {
            let locked = call.lock();
            let views = Views::<T>::new(&locked, layout)?;
            let dy = locked.view::<T>(count)?;
            let z = z.map(|_| locked.view::<T>(count + 1)).transpose()?;
            let mut opened = gradients.iter_mut().map(open).collect::<Result<Vec<_>>>()?.into_iter();
            let mut dx = opened.next().flatten();
            let mut dw = if layout.has_base { opened.next().flatten() } else { None };
            let mut db = if layout.has_bias { opened.next().flatten() } else { None };
            let mut of_updates: Vec<_> = opened.collect();
            let mut dz = open(&mut dz)?;

            let places = of_updates.chunks_exact_mut(3).map(|chunk| {
                let mut chunk = chunk.iter_mut().map(|gradient| gradient.as_deref_mut());
                let mut next = || chunk.next().flatten();
                UpdateGradientPlaces { dv: next(), dcodes: next(), du: next() }
            });
            let outputs = UpdateGradientOutputs {
                dx: dx.as_deref_mut(),
                updates: places.collect(),
                db: db.as_deref_mut(),
                dz: dz.as_deref_mut(),
                ..UpdateGradientOutputs::<T, T, T>::default()
            };
            let ([v, codes, u], scaling) = (&views.updates[0], layout.scalings[0]);
            let first = match &views.w {
                Some(w) => ops::linear_with_update_backward(&views.x, w, v, codes, u, scaling, &dy),
                None => ops::generated_update_backward(&views.x, v, codes, u, scaling, &dy),
            };
            let others = views.updates[1..].iter().zip(&layout.scalings[1..]);
            let all = others.fold(first, |all, ([v, codes, u], &scaling)| all.and(v, codes, u, scaling));
            let all = if layout.has_base { all.activation(layout.activation) } else { all };
            let all = if is_relu { all.output(z.as_deref()) } else { all.preactivation(z.as_deref()) };
            all.on(call.stream()).run_into(outputs)?;
            if let (Some(dw), Some(w)) = (dw.as_deref_mut(), &views.w) {
                let gradient = dz.as_deref().unwrap_or(&dy);
                let outputs = LinearGradientOutputs { dw: Some(dw), ..LinearGradientOutputs::default() };
                ops::linear_backward(&views.x, w, gradient).on(call.stream()).run_into(outputs)?;
            }
        }
        Ok(gradients.into_iter().map(finished).collect())
    }
}
