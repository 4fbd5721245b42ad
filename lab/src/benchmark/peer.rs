//! Measuring PEER: tokens to experts to outputs, the two parts of it by themselves, and a layer with its gradients.

use std::collections::HashSet;
use std::rc::Rc;

use half::{bf16, f16};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{
    ExpertInput, ExpertLayout, ExpertMlpGradients, ExpertTable, ExpertVectors, ProductKeyGradientOutputs,
    ProductKeyGradients, Routing, RoutingInput,
};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::optim::{AdamW, AdamWOptions, Gradient};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::{Options, Subject, Timing, interleaved, sets_beyond_cache};
use crate::cases::{Data, PeerSizes};

/// The operation's name in errors.
const OPERATION: &str = "benchmark::peer";
/// Experts that are drawn; a larger table repeats them, since what a row holds decides nothing about the time that it takes to read.
const DRAWN: usize = 1 << 12;

/// What a measurement of a layer found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerMeasurement {
    /// The time from tokens to outputs.
    pub layer: Timing,
    /// That of the projection and the retrieval.
    pub routing: Timing,
    /// That of the experts.
    pub experts: Timing,
    /// That of the layer, of its gradients and of those of its weights, where experts are not quantised.
    pub training: Option<Timing>,
    /// What gradients of experts and of the retrieval ran.
    pub gradients: Option<[Implementation; 2]>,
    /// That of a step of AdamW with these gradients, what it ran, and the bytes that it has to read and write.
    pub optimizer: Option<(Timing, Implementation, f64)>,
    /// What the retrieval ran, and what evaluated the experts, each by itself.
    pub implementations: [Implementation; 2],
    /// Whether the layer worked its tokens in two parts, of which the second one's experts are found while those of the first are evaluated.
    pub in_parts: bool,
    /// Bytes of the rows that tokens use, counted once for each use.
    pub gathered: f64,
    /// Bytes of the rows that tokens use, counted once.
    pub distinct: f64,
}

/// Measures a layer on `device`, its two parts, and it with its gradients, interleaved. The tokens rotate, so that every launch reads other rows.
///
/// # Errors
///
/// [`Error::Type`] if the element type is not f16, bf16 or f32, [`Error::OutOfMemory`] if the device cannot hold the experts; otherwise
/// whatever the operations return.
pub fn peer(device: &Device, sizes: &PeerSizes, options: &Options) -> Result<PeerMeasurement> {
    match sizes.dtype {
        DType::F16 => measure::<f16>(device, sizes, options),
        DType::Bf16 => measure::<bf16>(device, sizes, options),
        DType::F32 => measure::<f32>(device, sizes, options),
        actual => Err(unknown(actual)),
    }
}

/// The error for a type of no layer.
fn unknown(actual: DType) -> Error {
    Error::Type { operation: OPERATION, operand: "x", expected: "f16, bf16 or f32".into(), actual }
}

/// A layer, and sets of tokens with their routings.
struct Layer<T: RoutingInput> {
    w_q: Tensor<T>,
    keys: [Tensor<T>; 2],
    experts: ExpertTable,
    sizes: PeerSizes,
    tokens: Vec<(Tensor<T>, Routing)>,
    /// The gradient of the output.
    dy: Tensor<T>,
}

impl<T: RoutingInput> Layer<T> {
    fn route<'a>(&'a self, x: &'a Tensor<T>) -> ops::peer::ProductKeyOp<'a, T> {
        let [first, second] = &self.keys;
        ops::product_key_topk(x, &self.w_q, first, second, self.sizes.heads, self.sizes.top_k)
    }
}

impl<T: RoutingInput + ExpertInput + FloatElement> Layer<T> {
    /// A drawn layer, and as many sets of drawn tokens as read more than caches hold.
    fn new(device: &Device, sizes: &PeerSizes) -> Result<Self> {
        let stream = device.default_stream();
        let layout = ExpertLayout::new(sizes.format, sizes.input, 1, sizes.output, false)?;
        let draw = |number: u64, shape: (usize, usize), scale: f64| -> Result<Tensor<T>> {
            let drawn = Data::Uniform.draw(0, number, shape, 1, f64::from)?;
            Tensor::from_array(device, &drawn.mapv(|value| T::round(value * scale)))
        };
        let PeerSizes { tokens, input, heads, query, sub_keys, .. } = *sizes;
        let unit = |length: usize| 1.0 / (length.max(1) as f64).sqrt();
        let keys =
            |number| draw(number, (heads * sub_keys, query / 2), 1.0)?.reshape([heads, sub_keys, query / 2]);
        let mut layer = Self {
            w_q: draw(0, (heads * query, input), unit(input))?,
            keys: [keys(1)?, keys(2)?],
            experts: table(device, layout, sizes)?,
            sizes: *sizes,
            tokens: Vec::new(),
            dy: draw(1 << 20, (tokens, sizes.output), 1.0)?,
        };
        for set in 0..sets_beyond_cache(device, layer.gathered()) as u64 {
            let x = draw(3 + set, (tokens, input), 1.0)?;
            let routing = layer.route(&x).on(&stream).run()?;
            layer.tokens.push((x, routing));
        }
        Ok(layer)
    }
}

impl<T: RoutingInput + ExpertInput> Layer<T> {
    /// Bytes of the rows that tokens use, counted once for each use.
    fn gathered(&self) -> u64 {
        let PeerSizes { tokens, heads, top_k, .. } = self.sizes;
        (tokens * heads * top_k * self.experts.layout().row_bytes()) as u64
    }

    /// Whether the layer has this part: quantised experts are not trained.
    fn has(&self, part: Part) -> bool {
        let trains = matches!(part, Part::Training | Part::Optimizer);
        !trains || !self.experts.layout().format().is_scaled()
    }

    /// An optimiser of the layer.
    fn optimizer(&self) -> Result<AdamW> {
        let options = AdamWOptions { learning_rate: 1e-6, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(self.experts.device(), options)?;
        optimizer.add("query", &self.w_q)?;
        optimizer.add("keys_1", &self.keys[0])?;
        optimizer.add("keys_2", &self.keys[1])?;
        optimizer.add("experts", &self.experts)?;
        Ok(optimizer)
    }

    /// The gradients of the first tokens.
    fn gradients(&self) -> Result<LayerGradients<T>> {
        let (x, routing) = &self.tokens[0];
        let of_experts = ops::expert_mlp_backward(x, routing, &self.experts, &self.dy).run()?;
        let of_router = self.route(x).backward(routing, &of_experts.dgates).run()?;
        Ok((of_experts, of_router))
    }
}

/// Which part is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Layer,
    Routing,
    Experts,
    Training,
    Optimizer,
}

struct Launches<T: RoutingInput> {
    layer: Rc<Layer<T>>,
    stream: Stream,
    part: Part,
    /// Those of the experts and of the retrieval, which a step writes over.
    gradients: Option<LayerGradients<T>>,
    /// What moves the layer by the gradients of the first tokens.
    optimizer: Option<AdamW>,
}

/// The gradients of experts, and of the retrieval.
type LayerGradients<T> = (ExpertMlpGradients<T>, ProductKeyGradients<T>);

/// What an optimiser takes of them.
fn all_of<T: RoutingInput>((of_experts, of_router): &LayerGradients<T>) -> Vec<Option<Gradient<'_>>> {
    let ProductKeyGradients { dw_q, dkeys_1, dkeys_2, .. } = of_router;
    let router = [dw_q, dkeys_1, dkeys_2].map(|of| Some(of.into()));
    router.into_iter().chain([of_experts.experts.as_ref().map(Gradient::from)]).collect()
}

impl<T: RoutingInput + ExpertInput> Launches<T> {
    fn new(layer: &Rc<Layer<T>>, part: Part) -> Result<Self> {
        let has_gradients = matches!(part, Part::Training | Part::Optimizer) && layer.has(part);
        let gradients = has_gradients.then(|| layer.gradients()).transpose()?;
        let optimizer =
            (part == Part::Optimizer && layer.has(part)).then(|| layer.optimizer()).transpose()?;
        let stream = layer.experts.device().default_stream();
        Ok(Self { layer: layer.clone(), stream, part, gradients, optimizer })
    }

    /// What a step of the optimiser runs, and the bytes that it has to read and write: of each number that moves its gradient, two moments, the copy in f32 and the number.
    fn step(&self) -> Result<Option<(Implementation, f64)>> {
        let Some((gradients, optimizer)) = self.gradients.as_ref().zip(self.optimizer.as_ref()) else {
            return Ok(None);
        };
        let (of_experts, of_router) = gradients;
        let used = match &of_experts.experts {
            Some(experts) => experts.count.to_vec()?.first().copied().unwrap_or(0) as usize,
            None => 0,
        };
        let router = of_router.dw_q.len() + of_router.dkeys_1.len() + of_router.dkeys_2.len();
        let moved = router + used * (self.layer.sizes.input + self.layer.sizes.output);
        let of_number = 4 + 2 * 8 + if T::DTYPE == DType::F32 { 8 } else { 8 + 2 };
        Ok(Some((optimizer.implementation(&all_of(gradients))?, (moved * of_number) as f64)))
    }
}

impl<T: RoutingInput + ExpertInput> Subject for Launches<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let (layer, stream) = (&self.layer, &self.stream);
        let (x, known) = &layer.tokens[index % layer.tokens.len()];
        let retrieval = layer.route(x).on(stream);
        match self.part {
            Part::Layer => {
                let mut y = Tensor::uninit_on(stream, [layer.sizes.tokens, layer.sizes.output])?;
                ops::peer::peer(&retrieval, &layer.experts, Activation::GeluErf, &mut y)
            }
            Part::Routing => retrieval.run().map(|_| ()),
            Part::Experts => ops::expert_mlp(x, known, &layer.experts).on(stream).run().map(|_| ()),
            Part::Optimizer => {
                let Some((gradients, optimizer)) = self.gradients.as_ref().zip(self.optimizer.as_mut())
                else {
                    return Ok(());
                };
                optimizer.step_on(stream, &all_of(gradients))
            }
            Part::Training => {
                let Some((of_experts, of_router)) = &mut self.gradients else { return Ok(()) };
                let routing = retrieval.run()?;
                ops::expert_mlp(x, &routing, &layer.experts).on(stream).run()?;
                let backward = ops::expert_mlp_backward(x, &routing, &layer.experts, &layer.dy);
                backward.on(stream).run_into(of_experts)?;
                let ProductKeyGradients { dw_q, dkeys_1, dkeys_2, .. } = of_router;
                retrieval.backward(&routing, &of_experts.dgates).run_into(ProductKeyGradientOutputs {
                    dx: Some(&mut of_experts.dx),
                    dw_q: Some(dw_q),
                    dkeys_1: Some(dkeys_1),
                    dkeys_2: Some(dkeys_2),
                    adds_dx: true,
                    ..ProductKeyGradientOutputs::default()
                })
            }
        }
    }
}

/// A layer and the parts of it to be launched on the device's default stream, each with its name: for a profiler.
///
/// # Errors
///
/// As [`peer`].
pub fn peer_subjects(device: &Device, sizes: &PeerSizes) -> Result<Vec<(&'static str, Box<dyn Subject>)>> {
    fn of<T: RoutingInput + ExpertInput + FloatElement>(
        device: &Device,
        sizes: &PeerSizes,
    ) -> Result<Vec<(&'static str, Box<dyn Subject>)>> {
        let layer = Rc::new(Layer::<T>::new(device, sizes)?);
        let parts = [("layer", Part::Layer), ("training", Part::Training), ("optimizer", Part::Optimizer)];
        let all = parts.into_iter().filter(|(_, part)| layer.has(*part));
        all.map(|(name, part)| Ok((name, Box::new(Launches::new(&layer, part)?) as Box<dyn Subject>)))
            .collect()
    }
    match sizes.dtype {
        DType::F16 => of::<f16>(device, sizes),
        DType::Bf16 => of::<bf16>(device, sizes),
        DType::F32 => of::<f32>(device, sizes),
        actual => Err(unknown(actual)),
    }
}

fn measure<T: RoutingInput + ExpertInput + FloatElement>(
    device: &Device,
    sizes: &PeerSizes,
    options: &Options,
) -> Result<PeerMeasurement> {
    let layer = Rc::new(Layer::<T>::new(device, sizes)?);
    let (x, routing) = &layer.tokens[0];
    let implementations =
        [layer.route(x).implementation()?, ops::expert_mlp(x, routing, &layer.experts).implementation()?];
    let in_parts = ops::peer::peer_is_in_parts(&layer.route(x), &layer.experts)?;
    let gradients = if layer.has(Part::Training) {
        let of_experts = ops::expert_mlp_backward(x, routing, &layer.experts, &layer.dy);
        let of_retrieval = layer.route(x).backward(routing, &routing.gates);
        Some([of_experts.implementation()?, of_retrieval.implementation()?])
    } else {
        None
    };
    let row_bytes = layer.experts.layout().row_bytes();
    let distinct = routing.ids.to_vec()?.into_iter().collect::<HashSet<_>>().len() * row_bytes;

    let of = |part| Launches::new(&layer, part);
    let (mut whole, mut routing, mut experts) = (of(Part::Layer)?, of(Part::Routing)?, of(Part::Experts)?);
    let (mut training, mut optimizer) = (of(Part::Training)?, of(Part::Optimizer)?);
    let step = optimizer.step()?;
    let mut subjects: Vec<&mut dyn Subject> = vec![&mut whole, &mut routing, &mut experts];
    if gradients.is_some() {
        // The first step makes the tables.
        optimizer.enqueue(0)?;
        subjects.extend([&mut training as &mut dyn Subject, &mut optimizer]);
    }
    let timings = interleaved(&device.default_stream(), &mut subjects, options)?;
    Ok(PeerMeasurement {
        layer: timings[0],
        routing: timings[1],
        experts: timings[2],
        training: timings.get(3).copied(),
        gradients,
        optimizer: timings.get(4).zip(step).map(|(&timing, (ran, bytes))| (timing, ran, bytes)),
        implementations,
        in_parts,
        gathered: layer.gathered() as f64,
        distinct: distinct as f64,
    })
}

/// A table of drawn experts.
fn table(device: &Device, layout: ExpertLayout, sizes: &PeerSizes) -> Result<ExpertTable> {
    let mut table = ExpertTable::zeros(device, layout, sizes.experts())?;
    for_drawn_rows(layout, sizes, |first, rows| table.write_rows(first, rows))?;
    Ok(table)
}

/// Calls `write` with the number of a first expert and the rows of it and those after it, until it had those of all.
pub(super) fn for_drawn_rows(
    layout: ExpertLayout,
    sizes: &PeerSizes,
    mut write: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let (count, drawn) = (sizes.experts(), sizes.experts().min(DRAWN));
    let vectors = |number: u64, length: usize| -> Result<Vec<f32>> {
        let scale = 1.0 / (length.max(1) as f32).sqrt();
        let drawn = Data::Uniform.draw(1, number, (drawn, length), 1, |value| value)?;
        Ok(drawn.into_iter().map(|value| value * scale).collect())
    };
    let (u, v) = (vectors(0, sizes.input)?, vectors(1, sizes.output)?);
    let mut rows = vec![0; drawn * layout.row_bytes()];
    layout.pack_rows(ExpertVectors { u: &u, w: &[], v: &v }, &mut rows)?;
    (0..count).step_by(drawn.max(1)).try_for_each(|first| {
        let part = drawn.min(count - first) * layout.row_bytes();
        write(first, &rows[..part])
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warpsmith::Device;
    use warpsmith::ops::peer::ExpertFormat;

    use super::peer;
    use crate::benchmark::Options;
    use crate::cases::PeerSizes;

    #[test]
    fn every_part_is_timed_and_rows_that_are_used_twice_count_once() {
        let mut sizes = PeerSizes { sub_keys: 8, heads: 3, top_k: 4, query: 16, ..PeerSizes::reference(40) };
        (sizes.input, sizes.output, sizes.format) = (24, 40, ExpertFormat::Int8);
        let options = Options { warm_up: Duration::ZERO, samples: 1, batch: Duration::ZERO };
        let measured = peer(&Device::cpu(), &sizes, &options).expect("the sizes fit");
        assert!(measured.layer.median > Duration::ZERO && measured.experts.median > Duration::ZERO);
        assert!(measured.routing.median > Duration::ZERO && !measured.in_parts);
        assert!(measured.training.is_none() && measured.gradients.is_none() && measured.optimizer.is_none());
        let unquantised = PeerSizes { format: ExpertFormat::Bf16, ..sizes };
        let trained = peer(&Device::cpu(), &unquantised, &options).expect("the sizes fit");
        assert!(trained.training.is_some_and(|training| training.median > trained.layer.median));
        let (step, ran, bytes) = trained.optimizer.expect("it is trained");
        assert!(step.median > Duration::ZERO && ran.to_string().contains("CPU"), "{ran}");
        // Of at most 64 experts with 64 numbers, and of the router.
        let (router, experts) = (3 * 16 * 24 + 2 * 3 * 8 * 8, 64 * (24 + 40));
        assert!(bytes > f64::from(30 * router) && bytes <= f64::from(30 * (router + experts)), "{bytes}");
        // 480 uses of 64 experts.
        assert!(measured.distinct * 5.0 < measured.gathered, "{measured:?}");
        assert_eq!(PeerSizes::reference(1).experts(), 1_048_576);
    }
}
