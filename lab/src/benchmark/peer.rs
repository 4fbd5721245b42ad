//! Measuring PEER: tokens to experts to outputs, and the two parts of it by themselves.

use std::collections::HashSet;
use std::rc::Rc;

use half::{bf16, f16};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{ExpertInput, ExpertLayout, ExpertTable, ExpertVectors, Routing, RoutingInput};
use warpsmith::ops::{self, Activation, Implementation};
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
    /// What the retrieval ran, and what evaluated the experts, each by itself.
    pub implementations: [Implementation; 2],
    /// Whether the layer worked its tokens in two parts, of which the second one's experts are found while those of the first are evaluated.
    pub in_parts: bool,
    /// Bytes of the rows that tokens use, counted once for each use.
    pub gathered: f64,
    /// Bytes of the rows that tokens use, counted once.
    pub distinct: f64,
}

/// Measures a layer on `device`, and its two parts, interleaved. The tokens rotate, so that every launch reads other rows.
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
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// A layer, and sets of tokens with their routings.
struct Layer<T: RoutingInput> {
    w_q: Tensor<T>,
    keys: [Tensor<T>; 2],
    experts: ExpertTable,
    sizes: PeerSizes,
    tokens: Vec<(Tensor<T>, Routing)>,
}

impl<T: RoutingInput> Layer<T> {
    fn route<'a>(&'a self, x: &'a Tensor<T>) -> ops::peer::ProductKeyOp<'a, T> {
        let [first, second] = &self.keys;
        ops::product_key_topk(x, &self.w_q, first, second, self.sizes.heads, self.sizes.top_k)
    }
}

/// Which part is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Layer,
    Routing,
    Experts,
}

struct Launches<T: RoutingInput> {
    layer: Rc<Layer<T>>,
    stream: Stream,
    part: Part,
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
        }
    }
}

fn measure<T: RoutingInput + ExpertInput + FloatElement>(
    device: &Device,
    sizes: &PeerSizes,
    options: &Options,
) -> Result<PeerMeasurement> {
    let stream = device.default_stream();
    let layout = ExpertLayout::new(sizes.format, sizes.input, 1, sizes.output, false)?;
    let draw = |number: u64, shape: (usize, usize), scale: f64| -> Result<Tensor<T>> {
        let drawn = Data::Uniform.draw(0, number, shape, 1, f64::from)?;
        Tensor::from_array(device, &drawn.mapv(|value| T::round(value * scale)))
    };
    let PeerSizes { tokens, input, heads, query, sub_keys, top_k, .. } = *sizes;
    let unit = |length: usize| 1.0 / (length.max(1) as f64).sqrt();
    let keys =
        |number| draw(number, (heads * sub_keys, query / 2), 1.0)?.reshape([heads, sub_keys, query / 2]);
    let mut layer = Layer {
        w_q: draw(0, (heads * query, input), unit(input))?,
        keys: [keys(1)?, keys(2)?],
        experts: table(device, layout, sizes)?,
        sizes: *sizes,
        tokens: Vec::new(),
    };
    let gathered = (tokens * heads * top_k * layout.row_bytes()) as u64;
    for set in 0..sets_beyond_cache(device, gathered) as u64 {
        let x = draw(3 + set, (tokens, input), 1.0)?;
        let routing = layer.route(&x).on(&stream).run()?;
        layer.tokens.push((x, routing));
    }
    let (x, routing) = &layer.tokens[0];
    let implementations =
        [layer.route(x).implementation()?, ops::expert_mlp(x, routing, &layer.experts).implementation()?];
    let in_parts = ops::peer::peer_is_in_parts(&layer.route(x), &layer.experts)?;
    let distinct = routing.ids.to_vec()?.into_iter().collect::<HashSet<_>>().len() * layout.row_bytes();

    let layer = Rc::new(layer);
    let of = |part| Launches { layer: layer.clone(), stream: stream.clone(), part };
    let (mut whole, mut routing, mut experts) = (of(Part::Layer), of(Part::Routing), of(Part::Experts));
    let timings = interleaved(&stream, &mut [&mut whole, &mut routing, &mut experts], options)?;
    Ok(PeerMeasurement {
        layer: timings[0],
        routing: timings[1],
        experts: timings[2],
        implementations,
        in_parts,
        gathered: gathered as f64,
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
        // 480 uses of 64 experts.
        assert!(measured.distinct * 5.0 < measured.gathered, "{measured:?}");
        assert_eq!(PeerSizes::reference(1).experts(), 1_048_576);
    }
}
