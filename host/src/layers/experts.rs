//! A layer's experts: resident on the device, or in host memory behind a cache.
//!
//! Behind a cache tokens are worked in chunks. While one is computed the rows of the next are copied. The kernel is the one that all tokens at
//! once would take, so that results are the same bit for bit wherever the rows are.

use std::ops::Range;

use parking_lot::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::peer::{ExpertInput, ExpertLayout, ExpertTable, ExpertVectors, NUMBERS_AT_A_TIME, Routing};
use crate::ops::{Activation, Implementation, expert_mlp};
use crate::peer::rows::{Next, Noting, Part, Step};
use crate::peer::{CacheOptions, CacheStatistics, CachedRows, ExpertMemory};
use crate::stream::{Event, Stream};
use crate::tensor::Tensor;
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "Experts::forward";
/// Tokens of a chunk, at least: fewer do not fill a GPU.
const FEWEST_TOKENS: usize = 64;
/// Tokens of a chunk, at most: with their inputs and outputs beside them, experts that are used again soon are still in the level-2 cache.
const MOST_TOKENS: usize = 2048;
/// Chunks that a pass is divided into, if there are tokens enough: the copies of the first one overlap with nothing.
const CHUNKS: usize = 4;

/// How a layer keeps and evaluates its experts.
///
/// By default they are on the device if they fit into the capacity of a cache, the activation is the GELU, and chunks are as large as is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertOptions {
    activation: Activation,
    memory: ExpertMemory,
    cache: CacheOptions,
    chunk: Option<usize>,
}

impl Default for ExpertOptions {
    fn default() -> Self {
        Self {
            activation: Activation::GeluErf,
            memory: ExpertMemory::Auto,
            cache: CacheOptions::default(),
            chunk: None,
        }
    }
}

impl ExpertOptions {
    /// What the hidden units do to x·u.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Where the experts are.
    #[must_use]
    pub fn memory(self, memory: ExpertMemory) -> Self {
        Self { memory, ..self }
    }

    /// The cache, if there is one; its capacity also says what fits on the device.
    #[must_use]
    pub fn cache(self, cache: CacheOptions) -> Self {
        Self { cache, ..self }
    }

    /// How many tokens are worked at a time, at least 1, with experts behind a cache.
    #[must_use]
    pub fn chunk_tokens(self, tokens: usize) -> Self {
        Self { chunk: Some(tokens), ..self }
    }
}

/// The experts of a layer, to be evaluated for tokens whose experts are known; [`Peer`](super::Peer) finds them, too.
///
/// ```
/// use warpsmith::layers::{ExpertOptions, Experts};
/// use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, Routing};
/// use warpsmith::peer::{CacheOptions, ExpertMemory};
/// use warpsmith::{Device, Tensor};
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::cpu();
/// // 100 experts from two inputs to one output; expert i has u = [1, 1] and v = [i].
/// let layout = ExpertLayout::new(ExpertFormat::F32, 2, 1, 1, false)?;
/// let options = ExpertOptions::default()
///     .memory(ExpertMemory::Cached)
///     .cache(CacheOptions::default().slots(10));
/// let experts = Experts::new(&device, layout, 100, &options, |range| {
///     Ok([vec![1.0; 2 * range.len()], Vec::new(), range.map(|i| i as f32).collect()])
/// })?;
/// let x = Tensor::from_slice(&device, &[20.0f32, 30.0], [1, 2])?;
/// let routing = Routing {
///     ids: Tensor::from_slice(&device, &[7u32, 50], [1, 1, 2])?,
///     gates: Tensor::from_slice(&device, &[1.0f32, 0.5], [1, 1, 2])?,
/// };
/// assert_eq!(experts.forward(&x, &routing)?.to_vec()?, [50.0 * 7.0 + 0.5 * 50.0 * 50.0]);
/// println!("{}", experts.statistics().expect("there is a cache"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Experts {
    device: Device,
    layout: ExpertLayout,
    count: usize,
    activation: Activation,
    chunk: Option<usize>,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Resident(Box<ExpertTable>),
    Cached(Box<Mutex<CachedRows>>),
}

impl Experts {
    /// `count` experts of this layout for `device`. `part(range)` gives the vectors of some of them, u `[experts, hidden, D]`, w likewise or empty, and
    /// v `[experts, hidden, O]`, and is called for one range after the other, from the first expert to the last.
    ///
    /// # Errors
    ///
    /// Those of `part`. [`Error::Shape`] or [`Error::Argument`] if the vectors do not fit the layout and its format.
    /// [`Error::Argument`] if an option or a variable of the environment is not what it can be. [`Error::SizeLimit`] if there
    /// are 2³² - 1 experts or more. [`Error::OutOfMemory`] if host or device have too little memory.
    pub fn new(
        device: &Device,
        layout: ExpertLayout,
        count: usize,
        options: &ExpertOptions,
        part: impl FnMut(Range<usize>) -> Result<[Vec<f32>; 3]>,
    ) -> Result<Self> {
        Self::of("Experts::new", device, layout, count, options, part)
    }

    /// [`new`](Self::new) for `operation`, whose name errors have.
    pub(super) fn of(
        operation: &'static str,
        device: &Device,
        layout: ExpertLayout,
        count: usize,
        options: &ExpertOptions,
        mut part: impl FnMut(Range<usize>) -> Result<[Vec<f32>; 3]>,
    ) -> Result<Self> {
        if options.chunk == Some(0) {
            return Err(Error::Argument {
                operation,
                argument: "chunk_tokens",
                expected: "at least 1".into(),
                actual: "0".into(),
            });
        }
        let resident = match options.memory {
            ExpertMemory::Resident => true,
            ExpertMemory::Cached => false,
            ExpertMemory::Auto => {
                let free = device.memory_stats()?.free;
                options.cache.settings()?.slots(count, layout.row_bytes(), free)? == count
            }
        };
        let store = if resident {
            Store::Resident(Box::new(ExpertTable::from_parts(operation, device, layout, count, part)?))
        } else {
            let mut rows = CachedRows::new(device, count, layout.row_bytes(), &options.cache)?;
            let numbers = layout.hidden().saturating_mul(2 * layout.d() + layout.o());
            let at_a_time = (NUMBERS_AT_A_TIME / numbers.max(1)).max(1);
            for first in (0..count).step_by(at_a_time) {
                let range = first..count.min(first + at_a_time);
                let [u, w, v] = part(range.clone())?;
                let mut bytes = crate::memory::zeros(operation, range.len() * layout.row_bytes())?;
                layout.pack_rows_for(operation, ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
                rows.write(first, &bytes)?;
                trace::progress("packing experts", range.end, count);
            }
            Store::Cached(Box::new(Mutex::new(rows)))
        };
        let (device, activation, chunk) = (device.clone(), options.activation, options.chunk);
        Ok(Self { device, layout, count, activation, chunk, store })
    }

    /// The experts of this layout that `rows` holds, one in each row.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the rows have another length than the layout says.
    pub fn in_rows(layout: ExpertLayout, rows: CachedRows) -> Result<Self> {
        if rows.row_bytes() != layout.row_bytes() {
            return Err(Error::Argument {
                operation: "Experts::in_rows",
                argument: "rows",
                expected: format!("rows of {} bytes", layout.row_bytes()),
                actual: format!("rows of {}", rows.row_bytes()),
            });
        }
        let (device, count) = (rows.device().clone(), rows.cache().rows());
        let store = Store::Cached(Box::new(Mutex::new(rows)));
        Ok(Self { device, layout, count, activation: Activation::GeluErf, chunk: None, store })
    }

    /// Gives the cache another number of slots, and fills them with the first experts' rows. Without a cache there is nothing to do.
    ///
    /// # Errors
    ///
    /// As [`CachedRows::resize`] and [`CachedRows::prefetch`].
    pub fn resize_cache(&self, slots: usize) -> Result<()> {
        let Store::Cached(rows) = &self.store else { return Ok(()) };
        let mut rows = rows.lock();
        rows.resize(slots)?;
        let ids: Vec<u32> = (0..rows.cache().slots() as u32).collect();
        rows.prefetch(&ids)
    }

    /// Evaluates the experts that `routing` names for each row of `x` `[.., D]`: `[.., O]`. See [`ops::expert_mlp`](crate::ops::expert_mlp).
    ///
    /// # Errors
    ///
    /// As [`ExpertMlpOp::run`](crate::ops::peer::ExpertMlpOp::run); behind a cache also those of [`CachedRows::stage_ids`], for all ids together, and
    /// [`Error::Argument`] for an id of no expert.
    pub fn forward<T: ExpertInput>(&self, x: &Tensor<T>, routing: &Routing) -> Result<Tensor<T>> {
        self.forward_on(x, routing, &self.device.default_stream())
    }

    /// As [`forward`](Self::forward), on `stream`.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`Error::DeviceMismatch`] if the stream is another device's.
    pub fn forward_on<T: ExpertInput>(
        &self,
        x: &Tensor<T>,
        routing: &Routing,
        stream: &Stream,
    ) -> Result<Tensor<T>> {
        let mut shape = x.shape().to_vec();
        if let Some(columns) = shape.last_mut() {
            *columns = self.layout.o();
        }
        // What does not fit is found below.
        let mut y = Tensor::uninit_on(stream, shape)?;
        self.forward_into(x, routing, &mut y, stream)?;
        Ok(y)
    }

    /// As [`forward`](Self::forward), on `stream` and into `y` `[.., O]`, a tensor without gaps.
    ///
    /// With all experts on the device the work can be [captured](Stream::capture).
    ///
    /// # Errors
    ///
    /// As [`forward_on`](Self::forward_on); [`Error::Shape`], [`Error::Stride`] and [`Error::Overlap`] if `y` does not fit or shares memory with another
    /// operand, [`Error::Argument`] if the stream is being captured and the experts are behind a cache.
    pub fn forward_into<T: ExpertInput>(
        &self,
        x: &Tensor<T>,
        routing: &Routing,
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.device.expect_same(OPERATION, "x", x.device())?;
        self.device.expect_same(OPERATION, "stream", stream.device())?;
        match &self.store {
            Store::Resident(table) => {
                expert_mlp(x, routing, table).activation(self.activation).on(stream).run_into(y)
            }
            Store::Cached(rows) => {
                // The host waits for what is noted of the ids, and decides by that what is copied. Nor does it wait for the cache then: who has that
                // may wait for the end of the capture.
                stream.expect_no_capture(OPERATION)?;
                self.forward_cached(&mut rows.lock(), x, routing, y, stream)
            }
        }
    }

    fn forward_cached<T: ExpertInput>(
        &self,
        rows: &mut CachedRows,
        x: &Tensor<T>,
        routing: &Routing,
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [tokens, heads, k] = routing.sizes(OPERATION)?;
        let leading = &routing.ids.shape()[..routing.ids.rank() - 2];
        let expect = |operand, tensor: &Tensor<T>, columns: usize| {
            let (expected, actual) = ([leading, &[columns]].concat(), tensor.shape().to_vec());
            if actual == expected {
                return Ok(());
            }
            let expected = format!("{expected:?}, for these ids and experts");
            Err(Error::Shape { operation: OPERATION, operand, expected, actual })
        };
        expect("x", x, self.layout.d())?;
        expect("y", y, self.layout.o())?;
        self.device.expect_same(OPERATION, "y", y.device())?;
        y.expect_writable(OPERATION, "y")?;
        if !y.is_contiguous() {
            let (expected, actual) = ("elements without gaps".into(), y.strides().to_vec());
            return Err(Error::Stride { operation: OPERATION, operand: "y", expected, actual });
        }
        let shared = [
            ("x", y.shares_memory(x)),
            ("ids", y.shares_memory(&routing.ids)),
            ("gates", y.shares_memory(&routing.gates)),
        ];
        if let Some((other, _)) = shared.into_iter().find(|(_, shares)| *shares) {
            return Err(Error::Overlap { operation: OPERATION, operand: "y", other });
        }
        if tokens == 0 {
            return Ok(());
        }
        let per_token = heads * k;
        let routing = Routing {
            ids: routing.ids.contiguous_on(stream)?.reshape([tokens, heads, k])?,
            gates: routing.gates.contiguous_on(stream)?.reshape([tokens, heads, k])?,
        };
        let (x, mut y) = (x.flatten_leading()?, y.flatten_leading()?);
        self.device.expect_same(OPERATION, "ids", routing.ids.device())?;
        // What is wrong with these operands is found before anything is staged.
        let whole = rows.table(self.layout, None)?;
        expert_mlp(&x, &routing, &whole).activation(self.activation).implementation()?;
        let ids = routing.ids.reshape([tokens * per_token])?;
        let after = stream.with_operands(&[&ids], || stream.record())?;
        let chunk = self.chunk.unwrap_or_else(|| chunk_tokens(tokens, per_token, rows.cache().slots()));
        let pass = Pass { experts: self, x: &x, routing: &routing, ids, after, per_token, chunk, stream };
        // Before the first step nothing is under way, and what is wrong with ids is found.
        let first = pass.begin(rows)?;
        let done = pass.run(rows, first, &mut y);
        if done.is_err() {
            // Steps may be under way that nobody will release.
            rows.reset();
        }
        done
    }

    /// The implementation that [`forward`](Self::forward) takes; behind a cache the kernel runs once for each chunk.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), for the operands.
    pub fn implementation<T: ExpertInput>(&self, x: &Tensor<T>, routing: &Routing) -> Result<Implementation> {
        match &self.store {
            Store::Resident(table) => {
                expert_mlp(x, routing, table).activation(self.activation).implementation()
            }
            Store::Cached(rows) => {
                let table = rows.lock().table(self.layout, None)?;
                expert_mlp(x, routing, &table).activation(self.activation).implementation()
            }
        }
    }

    /// What has happened in the cache; `None` if all experts are resident.
    #[must_use]
    pub fn statistics(&self) -> Option<CacheStatistics> {
        match &self.store {
            Store::Resident(_) => None,
            Store::Cached(rows) => Some(rows.lock().statistics()),
        }
    }

    /// For each expert, how many chunks of tokens have used it; `None` if all experts are resident. Fetched from the device.
    ///
    /// # Errors
    ///
    /// As for [`CachedRows::heat`].
    pub fn heat(&self) -> Result<Option<Vec<u32>>> {
        match &self.store {
            Store::Resident(_) => Ok(None),
            Store::Cached(rows) => rows.lock().heat().map(Some),
        }
    }

    /// How many experts the device holds at a time: all of them if they are resident.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.store {
            Store::Resident(_) => self.count,
            Store::Cached(rows) => rows.lock().cache().slots(),
        }
    }

    /// The cache's failures, as [`CachedRows::fail`].
    #[cfg(test)]
    fn fail(&self, faults: impl IntoIterator<Item = (crate::peer::rows::Point, usize)>) -> usize {
        match &self.store {
            Store::Resident(_) => 0,
            Store::Cached(rows) => rows.lock().fail(faults),
        }
    }

    /// The table of the experts, if they are on the device: to read their rows, as training has left them. `None` behind a cache.
    #[must_use]
    pub fn table(&self) -> Option<&ExpertTable> {
        self.resident().map(|(table, _)| table)
    }

    /// All experts, if they are on the device, and what their hidden units do.
    pub(crate) fn resident(&self) -> Option<(&ExpertTable, Activation)> {
        match &self.store {
            Store::Resident(table) => Some((table, self.activation)),
            Store::Cached(_) => None,
        }
    }

    /// Whether all experts are on the device.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        matches!(self.store, Store::Resident(_))
    }

    /// How many experts there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Sizes and layout of the experts.
    #[must_use]
    pub fn layout(&self) -> &ExpertLayout {
        &self.layout
    }

    /// The device that evaluates the experts.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// One pass over all tokens with experts behind a cache.
struct Pass<'a, T: ExpertInput> {
    experts: &'a Experts,
    /// `[T, D]`.
    x: &'a Tensor<T>,
    /// `[T, H, k]`.
    routing: &'a Routing,
    /// `[T · H · k]`.
    ids: Tensor<u32>,
    /// When the ids are there.
    after: Event,
    /// Experts of a token.
    per_token: usize,
    /// Tokens of a chunk.
    chunk: usize,
    stream: &'a Stream,
}

/// A chunk whose rows are on their way, and the notes of the one behind it.
struct Staged {
    range: Range<usize>,
    step: Step,
    next: Option<Noting>,
}

impl<T: ExpertInput> Pass<'_, T> {
    /// Stages the first chunk, once all ids are known to be experts.
    fn begin(&self, rows: &mut CachedRows) -> Result<Staged> {
        let range = self.chunk_from(0);
        let noted = self.next(range.clone());
        let noting = rows.note(noted.ids, noted.part, noted.after);
        noting.and_then(|noting| self.stage(rows, range, noting)).map_err(|error| match error {
            Error::Argument { argument: "an id", actual, .. } => Error::Argument {
                operation: OPERATION,
                argument: "an id",
                expected: format!("less than {}, the number of experts", self.experts.count()),
                actual,
            },
            other => other,
        })
    }

    /// Computes all chunks, of which the first is staged.
    fn run(&self, rows: &mut CachedRows, first: Staged, y: &mut Tensor<T>) -> Result<()> {
        let mut staged = Some(first);
        while let Some(Staged { range, step, next }) = staged.take() {
            let after = self.chunk_from(range.end);
            let read = self.compute(rows, &step, range, y)?;
            // The next chunk's rows are copied while this one is computed, so its own stay pinned until then.
            if let Some(noting) = next {
                staged = Some(self.stage(rows, after, noting)?);
            }
            rows.release_after(step, read)?;
        }
        Ok(())
    }

    /// Stages a chunk that has been noted. The ids of the one behind it are noted before this one's rows are copied and the device is busy with it, so that
    /// the host can plan meanwhile.
    fn stage(&self, rows: &mut CachedRows, range: Range<usize>, noting: Noting) -> Result<Staged> {
        let after = self.chunk_from(range.end);
        let next = (!after.is_empty()).then(|| self.next(after));
        let (step, next) = rows.stage_noted_before(noting, next)?;
        Ok(Staged { range, step, next })
    }

    /// The tokens of the chunk that begins with this one.
    fn chunk_from(&self, first: usize) -> Range<usize> {
        first..self.x.shape()[0].min(first.saturating_add(self.chunk))
    }

    /// What is noted for a chunk.
    fn next(&self, range: Range<usize>) -> Next<'_> {
        let (first, end) = (range.start * self.per_token, range.end * self.per_token);
        // All ids are looked at with the first chunk's: nothing is computed if one is wrong.
        let checked = if first == 0 { self.ids.len() } else { end };
        Next { ids: &self.ids, part: Part { first, end, checked }, after: &self.after }
    }

    fn compute(
        &self,
        rows: &mut CachedRows,
        step: &Step,
        range: Range<usize>,
        y: &mut Tensor<T>,
    ) -> Result<Event> {
        rows.begin_reading(step, self.stream)?;
        let table = rows.table(self.experts.layout, Some(step))?;
        let routing = Routing {
            ids: self.routing.ids.slice(0, range.clone())?,
            gates: self.routing.gates.slice(0, range.clone())?,
        };
        let x = self.x.slice(0, range.clone())?;
        expert_mlp(&x, &routing, &table)
            .activation(self.experts.activation)
            .part_of(self.x.shape()[0])
            .on(self.stream)
            .run_into(&mut y.slice(0, range)?)?;
        rows.end_reading(self.stream)
    }
}

/// How many tokens of `tokens`, with `per_token` experts each, are worked at a time before a cache of `slots` rows. It is a quarter
/// of them, so many that the rows of two chunks fit into the cache even if no two are the same, but enough to fill a GPU.
fn chunk_tokens(tokens: usize, per_token: usize, slots: usize) -> usize {
    let fit = slots / 2 / per_token.max(1);
    tokens.div_ceil(CHUNKS).min(fit).clamp(FEWEST_TOKENS, MOST_TOKENS)
}

#[cfg(test)]
mod tests;
