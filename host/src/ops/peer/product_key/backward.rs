//! The gradients of a retrieval: of tokens, projection, sub-keys and norm.
//!
//! A kernel gives the gradients of queries before they are normalised. Those of tokens and projection are a linear layer's from there.
//! Terms of the gradients of sub-keys are added up by sub-key, in parts of so many uses that few have the same.

use warpsmith_dsl::launch::{GlobalMut, Kernel};
use warpsmith_dsl::product_key::{GRADIENT_ROWS, ProductKeyGradientParams};

use super::super::Routing;
use super::super::retrieval::RoutingInput;
use super::{ProductKeyOp, Sizes};
use crate::cpu;
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::column_sums::{column_sums, launch_of};
use crate::ops::embedding::{Order, Weights, add_weighted, weighted_kernel};
use crate::ops::linear::LinearGradientOutputs;
use crate::ops::linear::backward::Wanted;
use crate::ops::{Implementation, SIDE_LIMIT, expect_result, linear, linear_backward};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Span, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "product_key_topk_backward";
/// Terms that are added up together: at least so many, and of each sub-key so many if all are used alike.
const LEAST_PART: usize = 1024;
const USES: usize = 32;

/// The gradients of a retrieval.
///
/// The choice of experts has no gradient: that of the gates goes to the scores of those that were chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProductKeyGradients<T: Element> {
    /// Of x, of its shape.
    pub dx: Tensor<T>,
    /// Of the projection, `[H · d, D]`.
    pub dw_q: Tensor<f32>,
    /// Of its bias `[H · d]`, if there is one.
    pub dbias: Option<Tensor<f32>>,
    /// Of the first half's sub-keys, of their shape.
    pub dkeys_1: Tensor<f32>,
    /// Of the second half's.
    pub dkeys_2: Tensor<f32>,
    /// Of the norm's weight, of its shape, if there is one.
    pub dnorm_weight: Option<Tensor<f32>>,
    /// Of the norm's bias likewise.
    pub dnorm_bias: Option<Tensor<f32>>,
}

/// Where [`ProductKeyBackwardOp::run_into`] writes gradients; what is none is not computed. All are without gaps, and share no memory with operands or each other.
#[derive(Debug)]
pub struct ProductKeyGradientOutputs<'o, T: Element> {
    /// Of x, of its shape.
    pub dx: Option<&'o mut Tensor<T>>,
    /// Of the projection, `[H · d, D]`.
    pub dw_q: Option<&'o mut Tensor<f32>>,
    /// Of its bias, `[H · d]`.
    pub dbias: Option<&'o mut Tensor<f32>>,
    /// Of the first half's sub-keys, of their shape.
    pub dkeys_1: Option<&'o mut Tensor<f32>>,
    /// Of the second half's.
    pub dkeys_2: Option<&'o mut Tensor<f32>>,
    /// Of the norm's weight, which there has to be, of its shape.
    pub dnorm_weight: Option<&'o mut Tensor<f32>>,
    /// Of the norm's bias likewise.
    pub dnorm_bias: Option<&'o mut Tensor<f32>>,
    /// Whether all but dx are added to what is there.
    pub adds: bool,
    /// Whether dx is.
    pub adds_dx: bool,
}

// A derived one would ask for it of the element type.
impl<T: Element> Default for ProductKeyGradientOutputs<'_, T> {
    fn default() -> Self {
        Self {
            dx: None,
            dw_q: None,
            dbias: None,
            dkeys_1: None,
            dkeys_2: None,
            dnorm_weight: None,
            dnorm_bias: None,
            adds: false,
            adds_dx: false,
        }
    }
}

/// Gradients that have yet to be computed; see [`ProductKeyOp::backward`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct ProductKeyBackwardOp<'a, T: Element> {
    of: ProductKeyOp<'a, T>,
    routing: &'a Routing,
    dgates: &'a Tensor<f32>,
}

/// How the terms of sub-keys' gradients are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    /// Experts of rows, one after the other, of a part.
    uses: usize,
    /// Parts.
    count: usize,
    /// Sub-keys of a half.
    sub_keys: usize,
}

impl Parts {
    fn new(uses: usize, sub_keys: usize) -> Self {
        let of_part = LEAST_PART.max(sub_keys.saturating_mul(USES)).min(uses.max(1));
        Self { uses: of_part, count: uses.div_ceil(of_part), sub_keys }
    }
}

impl<'a, T: RoutingInput> ProductKeyBackwardOp<'a, T> {
    pub(super) fn new(of: ProductKeyOp<'a, T>, routing: &'a Routing, dgates: &'a Tensor<f32>) -> Self {
        Self { of, routing, dgates }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { of: self.of.on(stream), ..self }
    }

    /// Computes all gradients. On a GPU the work may still be under way when this returns.
    ///
    /// Sums are in f32, in an order that follows from the sizes: the same bits every time. The gradient of the queries is rounded to the type of x where it is multiplied
    /// with x or the projection.
    ///
    /// An id of no expert is an error on the CPU. A GPU and the emulator make the gradient of that query NaN, and so every sum that it is a term of. The id counts for no
    /// sub-key.
    ///
    /// Where queries are divided by their length, one of length 0 has the factor 1 / ε. Its gradient may be more than f16 holds.
    ///
    /// # Errors
    ///
    /// As [`ProductKeyOp::run`], also for the routing and the gates' gradient; [`Error::SizeLimit`] if tokens have 2³¹ experts or more, or the sub-keys of a half 2³¹
    /// elements.
    pub fn run(&self) -> Result<ProductKeyGradients<T>> {
        let (_, stream) = (self.checked()?, self.of.stream());
        let ProductKeyOp { x, w_q, keys, bias, norm, .. } = self.of;
        let new = |shape: &[usize]| Tensor::<f32>::uninit_on(&stream, shape);
        let mut gradients = ProductKeyGradients {
            dx: Tensor::uninit_on(&stream, x.shape())?,
            dw_q: new(w_q.shape())?,
            dbias: bias.map(|bias| new(bias.shape())).transpose()?,
            dkeys_1: new(keys[0].shape())?,
            dkeys_2: new(keys[1].shape())?,
            dnorm_weight: norm.weight.map(|weight| new(weight.shape())).transpose()?,
            dnorm_bias: norm.bias.map(|bias| new(bias.shape())).transpose()?,
        };
        let ProductKeyGradients { dx, dw_q, dbias, dkeys_1, dkeys_2, dnorm_weight, dnorm_bias } =
            &mut gradients;
        self.run_into(ProductKeyGradientOutputs {
            dx: Some(dx),
            dw_q: Some(dw_q),
            dbias: dbias.as_mut(),
            dkeys_1: Some(dkeys_1),
            dkeys_2: Some(dkeys_2),
            dnorm_weight: dnorm_weight.as_mut(),
            dnorm_bias: dnorm_bias.as_mut(),
            ..ProductKeyGradientOutputs::default()
        })?;
        Ok(gradients)
    }

    /// Computes gradients into tensors of the caller's.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit, or
    /// shares memory with another tensor; [`Error::Argument`] if a gradient is asked for of a bias or a norm's weight that there is not.
    pub fn run_into(&self, outputs: ProductKeyGradientOutputs<'_, T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let sizes = self.checked()?;
        self.check_outputs(&outputs)?;
        let stream = self.of.stream();
        let ProductKeyGradientOutputs {
            dx,
            dw_q,
            dbias,
            mut dkeys_1,
            mut dkeys_2,
            mut dnorm_weight,
            mut dnorm_bias,
            adds,
            adds_dx,
        } = outputs;
        let q = self.of.project(&stream)?.flatten_leading()?;
        let mut dq = Tensor::<f32>::uninit_on(&stream, q.shape())?;
        let sums = [&mut dkeys_1, &mut dkeys_2, &mut dnorm_weight, &mut dnorm_bias];
        if sizes.tokens == 0 {
            // Sums over no tokens.
            for sum in sums.into_iter().flatten() {
                if !adds {
                    sum.fill_zero_on(&stream)?;
                }
            }
        } else if self.of.x.device().kind() == DeviceKind::Cpu {
            self.run_on_cpu(&q, &mut dq, sums, adds)?;
        } else {
            self.launch(sizes, &stream, &q, &mut dq, sums, adds)?;
        }
        let shape = [&self.of.x.shape()[..self.of.x.rank() - 1], &dq.shape()[1..]].concat();
        let dq = dq.reshape(shape)?;
        linear_backward(self.of.x, self.of.w_q, &dq).on(&stream).run_into(LinearGradientOutputs {
            dx,
            dw: dw_q,
            db: dbias,
            adds,
            adds_dx,
            ..LinearGradientOutputs::default()
        })
    }

    /// Which implementation [`run`](Self::run) would take. What runs for both halves is named once.
    ///
    /// It makes room for the queries for a moment.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let sizes = self.checked()?;
        let ProductKeyOp { x, w_q, keys, norm, heads, k, .. } = self.of;
        let device = x.device();
        if sizes.tokens == 0 {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let rows = sizes.tokens * heads;
        let mut all = linear(x, w_q).output::<f32>().implementation()?;
        let copies = all.copies() as usize
            + keys.iter().filter(|keys| !has_rows(keys)).count()
            + usize::from(!self.routing.ids.is_contiguous())
            + usize::from(!self.routing.gates.is_contiguous())
            + usize::from(!self.dgates.is_contiguous())
            + self.of.of_features().iter().filter(|(_, tensor)| !tensor.is_contiguous()).count();
        let parts = self.parts(sizes);
        let mut launches = vec![(T::Gradient::DECLARATION.name, (rows as u32).div_ceil(GRADIENT_ROWS))];
        launches.extend(crate::ops::embedding::order_kernels(rows * k).into_iter().take(3));
        // Only shapes are asked for.
        let queries = Tensor::<f32>::uninit(device, [rows, 2 * sizes.half])?;
        launches.extend(weighted_kernel(&queries.slice(1, 0..sizes.half)?, rows * k, 1, device));
        if parts.count > 1 {
            launches.push(launch_of::<f32>(parts.sub_keys * sizes.half));
        }
        launches.extend(norm.weight.or(norm.bias).map(|of| launch_of::<f32>(of.len())));
        for (name, blocks) in launches {
            all = all.then(Implementation::kernel(device, name, blocks));
        }
        let shape = [&x.shape()[..x.rank() - 1], &[heads * 2 * sizes.half]].concat();
        let wanted = Wanted { dx: true, dw: true, db: self.of.bias.is_some(), ..Wanted::default() };
        let queries = queries.reshape(shape)?;
        let linear = linear_backward(x, w_q, &queries).implementation_of::<f32>(wanted)?;
        let copies = copies + linear.copies() as usize;
        Ok(all.then(linear).with_copies(copies))
    }

    fn parts(&self, sizes: Sizes) -> Parts {
        let groups = if sizes.per_head { self.of.heads } else { 1 };
        Parts::new(sizes.tokens * self.of.heads * self.of.k, groups * sizes.n)
    }

    fn checked(&self) -> Result<Sizes> {
        let operation = OPERATION;
        let sizes = self.of.check()?;
        let device = self.of.x.device();
        let shape = self.of.shape();
        let Routing { ids, gates } = self.routing;
        for (operand, actual) in
            [("ids", ids.shape()), ("gates", gates.shape()), ("dgates", self.dgates.shape())]
        {
            if actual != shape {
                let expected = format!("{shape:?}, as x, heads and k give");
                return Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() });
            }
        }
        device.expect_same(operation, "ids", ids.device())?;
        device.expect_same(operation, "gates", gates.device())?;
        device.expect_same(operation, "dgates", self.dgates.device())?;
        let uses = (sizes.tokens * self.of.heads).saturating_mul(self.of.k) as u64;
        let groups = if sizes.per_head { self.of.heads } else { 1 };
        let numbers = (groups as u64).saturating_mul((sizes.n * sizes.half) as u64);
        for (operand, quantity, actual, limit) in [
            ("ids", "number of experts of all tokens", uses, SIDE_LIMIT),
            ("keys_1", "number of elements", numbers, SIDE_LIMIT),
        ] {
            if actual >= limit {
                let (limit, actual) = (format!("less than {limit}"), actual.to_string());
                return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
            }
        }
        Ok(sizes)
    }

    fn check_outputs(&self, outputs: &ProductKeyGradientOutputs<'_, T>) -> Result<()> {
        let (operation, device) = (OPERATION, self.of.x.device());
        let ProductKeyOp { x, w_q, keys, bias, norm, .. } = self.of;
        let Routing { ids, gates } = self.routing;
        let mut others: Vec<(&'static str, Span<'_>)> = vec![
            ("x", x.span()),
            ("w_q", w_q.span()),
            ("keys_1", keys[0].span()),
            ("keys_2", keys[1].span()),
            ("ids", ids.span()),
            ("gates", gates.span()),
            ("dgates", self.dgates.span()),
        ];
        others.extend(bias.map(|bias| ("bias", bias.span())));
        others.extend(self.of.of_features().into_iter().map(|(name, tensor)| (name, tensor.span())));
        let apart = |operand, span: Span<'_>| {
            let span_of = others.iter().find(|(_, other)| span.meets(other));
            match span_of {
                Some(&(other, _)) => Err(Error::Overlap { operation, operand, other }),
                None => Ok(()),
            }
        };
        if let Some(dx) = &outputs.dx {
            expect_result(operation, "dx", dx, device, x.shape(), "the operands")?;
            apart("dx", dx.span())?;
        }
        let sums = [
            ("dw_q", &outputs.dw_q, Some(w_q.shape())),
            ("dbias", &outputs.dbias, bias.map(Tensor::shape)),
            ("dkeys_1", &outputs.dkeys_1, Some(keys[0].shape())),
            ("dkeys_2", &outputs.dkeys_2, Some(keys[1].shape())),
            ("dnorm_weight", &outputs.dnorm_weight, norm.weight.map(Tensor::shape)),
            ("dnorm_bias", &outputs.dnorm_bias, norm.bias.map(Tensor::shape)),
        ];
        let mut before: Vec<(&'static str, Span<'_>)> =
            outputs.dx.iter().map(|dx| ("dx", dx.span())).collect();
        for (operand, sum, shape) in sums {
            let Some(sum) = sum else { continue };
            let Some(shape) = shape else {
                let expected = "none: the retrieval has no such operand".into();
                let actual = "a tensor".into();
                return Err(Error::Argument { operation, argument: operand, expected, actual });
            };
            expect_result(operation, operand, sum, device, shape, "the operands")?;
            apart(operand, sum.span())?;
            if let Some(&(other, _)) = before.iter().find(|(_, other)| sum.span().meets(other)) {
                return Err(Error::Overlap { operation, operand, other });
            }
            before.push((operand, sum.span()));
        }
        Ok(())
    }

    fn launch(
        &self,
        sizes: Sizes,
        stream: &Stream,
        q: &Tensor<f32>,
        dq: &mut Tensor<f32>,
        [dkeys_1, dkeys_2, dweight, dbias]: [&mut Option<&mut Tensor<f32>>; 4],
        adds: bool,
    ) -> Result<()> {
        let ProductKeyOp { heads, k, .. } = self.of;
        let Sizes { tokens, n, half, per_head } = sizes;
        let (rows, d) = (tokens * heads, 2 * half);
        let with_rows = |keys: &Tensor<T>| {
            if has_rows(keys) { Ok(keys.clone()) } else { keys.contiguous_on(stream) }
        };
        let (keys_1, keys_2) = (with_rows(self.of.keys[0])?, with_rows(self.of.keys[1])?);
        let norm = self.of.norm_on(stream, half)?;
        let ids = self.routing.ids.contiguous_on(stream)?;
        let gates = self.routing.gates.contiguous_on(stream)?;
        let dgates = self.dgates.contiguous_on(stream)?;
        let parts = self.parts(sizes);
        let of_keys = dkeys_1.is_some() || dkeys_2.is_some();
        let new = |shape: [usize; 2], is_wanted: bool| {
            is_wanted.then(|| Tensor::<f32>::uninit_on(stream, shape)).transpose()
        };
        let places = || of_keys.then(|| Tensor::<u32>::uninit_on(stream, [rows * k])).transpose();
        let mut normalised = new([rows, d], of_keys)?;
        let mut dscores = new([rows * k, 1], of_keys)?;
        let (mut places_1, mut places_2) = (places()?, places()?);
        let mut of_weight = new([rows, d], dweight.is_some())?;
        let mut of_bias = new([rows, d], dbias.is_some())?;
        let arg = |of: &mut Option<Tensor<f32>>| of.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut);
        let places_arg =
            |of: &mut Option<Tensor<u32>>| of.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut);
        let gradient = ProductKeyGradientParams {
            ids: ids.arg(),
            gates: gates.arg(),
            dgates: dgates.arg(),
            dq: dq.arg_mut(),
            normalised: arg(&mut normalised),
            dscores: arg(&mut dscores),
            places_1: places_arg(&mut places_1),
            places_2: places_arg(&mut places_2),
            of_weight: arg(&mut of_weight),
            of_bias: arg(&mut of_bias),
            of_head: if per_head { n as u32 } else { 0 },
            sub_keys: parts.sub_keys as u32,
            part: parts.uses as u32,
            reserved: 0,
        };
        let params = self.of.params(sizes, [&keys_1, &keys_2]);
        let mut operands: Vec<&dyn Operand> = vec![q, &*dq, &keys_1, &keys_2, &ids, &gates, &dgates];
        for of in [&normalised, &dscores, &of_weight, &of_bias].into_iter().flatten() {
            operands.push(of);
        }
        for of in [&places_1, &places_2].into_iter().flatten() {
            operands.push(of);
        }
        operands.extend(norm.operands());
        let arguments = (q.arg(), keys_1.arg(), keys_2.arg(), norm.params, gradient, params);
        // SAFETY: shapes and devices have been checked, and that results are apart from the rest; columns of sub-keys are next to each other. Tensors are freed in the order
        // of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            let grid = [(rows as u32).div_ceil(GRADIENT_ROWS), 1, 1];
            stream.device().kernel::<T::Gradient>()?.launch(stream, grid, arguments)
        })?;

        let places = [&places_1, &places_2];
        for (which, (dkeys, places)) in [dkeys_1, dkeys_2].into_iter().zip(places).enumerate() {
            let (Some(dkeys), Some(places)) = (dkeys, places) else { continue };
            let (Some(normalised), Some(dscores)) = (&normalised, &dscores) else { continue };
            let sums = parts.sub_keys * parts.count;
            let order = Order::of(places, sums, stream)?;
            let weights = Weights { weights: dscores, uses: k, sums: 1 };
            let queries = normalised.slice(1, which * half..(which + 1) * half)?;
            if parts.count == 1 {
                if !adds {
                    dkeys.fill_zero_on(stream)?;
                }
                let rows = dkeys.reshape([sums, half])?;
                add_weighted(stream, &queries, weights, (&order, sums), None, &rows)?;
                continue;
            }
            let of_parts = Tensor::<f32>::zeros_on(stream, [sums, half])?;
            add_weighted(stream, &queries, weights, (&order, sums), None, &of_parts)?;
            let of_parts = of_parts.reshape([parts.count, parts.sub_keys * half])?;
            let mut flat = dkeys.reshape([parts.sub_keys * half])?;
            column_sums(stream, [Some((&of_parts, &mut flat)), None], adds)?;
        }
        for (sum, terms) in [(dweight, &of_weight), (dbias, &of_bias)] {
            let (Some(sum), Some(terms)) = (sum, terms) else { continue };
            let columns = sum.len();
            let terms = terms.reshape([rows * d / columns, columns])?;
            column_sums(stream, [Some((&terms, &mut sum.reshape([columns])?)), None], adds)?;
        }
        Ok(())
    }

    fn run_on_cpu(
        &self,
        q: &Tensor<f32>,
        dq: &mut Tensor<f32>,
        [dkeys_1, dkeys_2, dweight, dbias]: [&mut Option<&mut Tensor<f32>>; 4],
        adds: bool,
    ) -> Result<()> {
        let (q, ids) = (q.to_vec()?, self.routing.ids.to_vec()?);
        let (gates, dgates) = (self.routing.gates.to_vec()?, self.dgates.to_vec()?);
        let gradients = self.of.with_cpu_keys(|keys| {
            cpu::product_key_topk_backward::<f32, T>(&q, keys, &ids, [&gates, &dgates])
        })?;
        dq.write_slice(&gradients.dq)?;
        let put = |to: &mut Option<&mut Tensor<f32>>, sums: &[f32]| {
            let Some(to) = to else { return Ok(()) };
            let columns = to.len().max(1);
            let mut all = if adds { to.to_vec()? } else { vec![0.0; columns] };
            // What the heads share is the sum of theirs.
            for of_head in sums.chunks(columns) {
                for (all, &sum) in all.iter_mut().zip(of_head) {
                    *all += sum;
                }
            }
            to.write_slice(&all)
        };
        let [of_keys_1, of_keys_2] = &gradients.dkeys;
        put(dkeys_1, of_keys_1)?;
        put(dkeys_2, of_keys_2)?;
        put(dweight, &gradients.dweight)?;
        put(dbias, &gradients.dshift)
    }
}

/// Whether the columns of each sub-key are next to each other.
fn has_rows<T: Element>(keys: &Tensor<T>) -> bool {
    keys.strides().last() == Some(&1) || keys.shape().last() == Some(&1)
}
