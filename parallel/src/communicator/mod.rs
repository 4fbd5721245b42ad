//! Communicators: what ranks say to each other.
//!
//! A [`Communicator`] is one rank's end. Ranks are threads of a process ([`Communicator::local`]), processes
//! ([`Communicator::connect`]), or GPUs ([`Communicator::nccl`]). All of them have the same operations on tensors. Over host
//! memory sums are in the order of the ranks.

mod backend;
mod call;
mod check;
mod host;
mod inbox;
mod local;
mod nccl;
mod reduce;
mod tcp;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warpsmith::{DType, Device, Element, Stream, Tensor, trace};

use backend::{Backend, Buffer, Gather, PointToPoint};
use call::{Call, Operation};
use check::{expect_count, expect_rank, expect_reducible, expect_tensor};

pub use call::Reduction;
pub use nccl::{NcclOptions, nccl_version};

use crate::error::{Result, argument};
use crate::launch::Launch;

/// The longest limit, which stands for all that are longer: so that a clock can count to its end.
const LONGEST_LIMIT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How long a rank waits for the others unless another limit is asked for.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// One rank's end of a group of ranks. Clones stand for the same end.
///
/// All ranks make the same calls in the same order. On a GPU a call enqueues its work on a stream, the device's default one
/// unless [`on`](Self::on) says another, and is ordered with all other uses of its tensors. Tensors are contiguous.
///
/// Where ranks disagree, or one ends, panics or does not come within the time limit, every rank gets a
/// [`Failure`](crate::Failure) that names it; the communicator cannot be used any more then.
///
/// ```
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::{Reduction, launch};
///
/// let sums = launch::threads(3, |communicator| {
///     let rank = communicator.rank() as f32;
///     let mut tensor = Tensor::from_slice(&Device::cpu(), &[rank, 1.0], [2])?;
///     communicator.all_reduce(&mut tensor, Reduction::Sum)?;
///     Ok(tensor.to_vec()?)
/// })?;
/// assert_eq!(sums, [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Clone)]
pub struct Communicator {
    backend: Arc<dyn Backend>,
    stream: Option<Stream>,
    /// Multiprocessors for its kernels beside products, where another number than the backend's is asked for.
    multiprocessors: Option<u32>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Communicator")
            .field("over", &self.backend.name())
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Communicator {
    fn new(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), stream: None, multiprocessors: None }
    }

    /// The ends of a group of threads, in the order of their ranks. A rank waits for the others for at most `limit`.
    ///
    /// Tensors may be on any device. They pass through host memory.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there are no ranks.
    pub fn local(size: usize, limit: Duration) -> Result<Vec<Self>> {
        if size == 0 {
            return Err(argument("Communicator::local", "size", "at least 1", size));
        }
        Ok(local::ranks(size, limit.min(LONGEST_LIMIT)).into_iter().map(Self::new).collect())
    }

    /// The end of a process in a group of processes, over TCP. A rank waits for the others for at most `limit`, here and in
    /// each call.
    ///
    /// Tensors may be on any device. They pass through host memory. Whoever can connect to the address can take part: it should
    /// be that of a trusted network.
    ///
    /// # Errors
    ///
    /// [`Error::WorldSize`](crate::Error::WorldSize), [`DuplicateRank`](crate::Error::DuplicateRank) and
    /// [`MissingRanks`](crate::Error::MissingRanks) if the ranks do not fit together, on every rank that came;
    /// [`Argument`](crate::Error::Argument) if there is no such rank; [`Io`](crate::Error::Io) if a connection fails.
    pub fn connect(launch: &Launch, limit: Duration) -> Result<Self> {
        if launch.rank >= launch.size {
            let expected = format!("below the number of ranks, {}", launch.size);
            return Err(argument("Communicator::connect", "rank", expected, launch.rank));
        }
        Ok(Self::new(tcp::connect(launch, limit.min(LONGEST_LIMIT))?))
    }

    /// The end of a rank with a GPU of its own, whose tensors NCCL carries. The ranks are those of `host`, over which they
    /// agree, and which notices when one of them is gone. Each rank calls this.
    ///
    /// NCCL must not create multicast objects: the variable `NCCL_NVLS_ENABLE` has to be 0 when the process starts.
    ///
    /// # Errors
    ///
    /// [`Error::Library`](crate::Error::Library) if NCCL is missing, [`SharedDevice`](crate::Error::SharedDevice) if two ranks
    /// have one GPU, [`Environment`](crate::Error::Environment) if multicast is not off, [`Argument`](crate::Error::Argument)
    /// if the device is no GPU, and [`Failure`](crate::Error::Failure) if NCCL or another rank fails.
    pub fn nccl(host: &Self, device: &Device, options: NcclOptions) -> Result<Self> {
        Ok(Self::new(nccl::create(host, device, options)?))
    }

    /// Splits the ranks into groups: those that give the same `color` get a communicator of their own, in the order of their
    /// ranks here. All ranks call this.
    ///
    /// It is a communicator over host memory; [`nccl`](Self::nccl) makes one for GPUs of it. Failures name ranks of the
    /// communicator that was split first, and what fails in one group fails in all that this rank is in.
    ///
    /// ```
    /// use warpsmith_parallel::launch;
    ///
    /// // Two by three ranks: rows that share weights, columns that share a batch.
    /// let places = launch::threads(6, |communicator| {
    ///     let rank = communicator.rank();
    ///     let (row, column) = (communicator.split(rank as u64 / 3)?, communicator.split(rank as u64 % 3)?);
    ///     Ok([row.rank(), row.size(), column.rank(), column.size()])
    /// })?;
    /// assert_eq!(places[4], [1, 3, 1, 2]);
    /// # Ok::<(), warpsmith_parallel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn split(&self, color: u64) -> Result<Self> {
        let Some(host) = self.backend.host() else {
            return Err(argument("split", "communicator", "one with a way over host memory", "without"));
        };
        Ok(Self::new(host.split(color)?))
    }

    /// The same end, whose work on a GPU runs on `stream`.
    #[must_use]
    pub fn on(&self, stream: &Stream) -> Self {
        Self { stream: Some(stream.clone()), ..self.clone() }
    }

    /// The same end, for whose kernels work [beside](Self::beside) them leaves so many multiprocessors, instead of what
    /// [`NcclOptions::with_multiprocessors`] says.
    #[must_use]
    pub fn with_multiprocessors(&self, multiprocessors: impl Into<Option<u32>>) -> Self {
        Self { multiprocessors: multiprocessors.into(), ..self.clone() }
    }

    /// How many multiprocessors work [beside](Self::beside) this end's calls leaves to their kernels. None over host memory,
    /// which has no kernels, unless it is [asked for](Self::with_multiprocessors).
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors.unwrap_or_else(|| self.backend.multiprocessors())
    }

    /// A stream for work while calls of this end are under way on another: the same stream, whose persistent kernels leave
    /// [so many](Self::multiprocessors) multiprocessors to the calls' kernels. Results have the same bits.
    ///
    /// On a stream that leaves some already, as one beside another end's calls does, kernels leave the larger of the two
    /// numbers, not their sum.
    ///
    /// Without that the kernels of a call wait for the end of a product, or a product's last blocks for the end of a call.
    #[must_use]
    pub fn beside(&self, stream: &Stream) -> Stream {
        match self.multiprocessors() {
            _ if self.size() == 1 => stream.clone(),
            0 => stream.clone(),
            own => {
                let all = stream.device().properties().multiprocessors;
                stream.with_multiprocessors(stream.multiprocessors().min(all.saturating_sub(own)))
            }
        }
    }

    /// NCCL's handle (`ncclComm_t`) of a communicator that [`nccl`](Self::nccl) made and that has not failed, for libraries
    /// that call NCCL themselves; `None` of others. It is valid as long as this end or a clone of it is. While it is used no
    /// other thread calls this end's operations. It does not block: each call is polled by `ncclCommGetAsyncError` until it is
    /// no longer under way, and only then comes the next.
    #[must_use]
    pub fn nccl_handle(&self) -> Option<*mut c_void> {
        self.backend.nccl_handle()
    }

    /// This end's number, from 0 to less than [`size`](Self::size).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.backend.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.backend.size()
    }

    /// Replaces the elements of each rank by their reduction over all ranks, which has the same bits everywhere.
    ///
    /// Over host memory types of 8 and 16 bits are added up in f32 and rounded once; f32 and f64 in their own type, in the
    /// order of the ranks. NCCL has an order of its own, which depends on the number of ranks, the size, its version and the machine.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if the tensor is not contiguous, or is of integers whose mean is asked for;
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn all_reduce<T: Element>(&self, tensor: &mut Tensor<T>, reduction: Reduction) -> Result<()> {
        const OPERATION: &str = "all_reduce";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(tensor);
        expect_tensor(OPERATION, "tensor", tensor, &stream)?;
        expect_reducible(OPERATION, T::DTYPE, reduction)?;
        let call = call::<T>(Operation::AllReduce(reduction), tensor.len());
        self.backend.all_reduce(call, reduction, tensor, &stream)
    }

    /// Reduces the inputs of all ranks, [`size`](Self::size) equally long parts each, and gives each rank its part.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`](crate::Error::Argument) if `input` has not so many elements
    /// as all outputs, or shares memory with `output`.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &Tensor<T>,
        output: &mut Tensor<T>,
        reduction: Reduction,
    ) -> Result<()> {
        const OPERATION: &str = "reduce_scatter";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(input);
        check::expect_pair(OPERATION, input, output, &stream)?;
        expect_reducible(OPERATION, T::DTYPE, reduction)?;
        expect_count(OPERATION, "input", input.len(), output.len().saturating_mul(self.size()))?;
        let call = call::<T>(Operation::ReduceScatter(reduction), output.len());
        self.backend.reduce_scatter(call, reduction, input, output, &stream)
    }

    /// Gives each rank the inputs of all ranks, one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if a tensor is not contiguous, `output` has not so many elements as all
    /// inputs, or the two share memory; [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn all_gather<T: Element>(&self, input: &Tensor<T>, output: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(ALL_GATHER);
        let stream = self.stream_for(input);
        let Gather { call, input, output } = self.gather(input, output)?;
        self.backend.all_gather(call, input, output, &stream)
    }

    /// A part of [`all_gathers`](Self::all_gathers), with the errors of [`all_gather`](Self::all_gather).
    pub(crate) fn gather<'a, T: Element>(
        &self,
        input: &'a Tensor<T>,
        output: &'a mut Tensor<T>,
    ) -> Result<Gather<'a>> {
        check::expect_pair(ALL_GATHER, input, output, &self.stream_for(input))?;
        expect_count(ALL_GATHER, "output", output.len(), input.len().saturating_mul(self.size()))?;
        Ok(Gather { call: call::<T>(Operation::AllGather, input.len()), input, output })
    }

    /// Several gathers, of tensors on `device`, which NCCL gets as one call.
    pub(crate) fn all_gathers(&self, device: &Device, parts: &mut [Gather<'_>]) -> Result<()> {
        let _range = trace::operation(ALL_GATHER);
        self.backend.all_gathers(parts, &self.stream_on(device))
    }

    /// Gives all ranks the elements that rank `root` has.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if the tensor is not contiguous or there is no such rank;
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn broadcast<T: Element>(&self, tensor: &mut Tensor<T>, root: usize) -> Result<()> {
        const OPERATION: &str = "broadcast";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(tensor);
        expect_tensor(OPERATION, "tensor", tensor, &stream)?;
        expect_rank(OPERATION, "root", root, self.size())?;
        let call = call::<T>(Operation::Broadcast { root }, tensor.len());
        self.backend.broadcast(call, root, tensor, &stream)
    }

    /// Gives part j of the input of rank i to rank j, as part i of its output. Parts are equally long.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if a tensor is not contiguous, the two are not equally long, cannot be split
    /// into so many parts, or share memory; [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn all_to_all<T: Element>(&self, input: &Tensor<T>, output: &mut Tensor<T>) -> Result<()> {
        const OPERATION: &str = "all_to_all";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(input);
        check::expect_pair(OPERATION, input, output, &stream)?;
        expect_count(OPERATION, "output", output.len(), input.len())?;
        if !input.len().is_multiple_of(self.size()) {
            let expected = format!("{} parts of equal length", self.size());
            return Err(argument(OPERATION, "input", expected, format!("of {} elements", input.len())));
        }
        let counts = vec![input.len() / self.size(); self.size()];
        let call = call::<T>(Operation::AllToAll, input.len() / self.size());
        self.backend.all_to_all(call, [&counts, &counts], input, output, &stream)
    }

    /// As [`all_to_all`](Self::all_to_all) with parts of any lengths: `sends[j]` elements go to rank j, `receives[i]` come from
    /// rank i.
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all), and [`Error::Argument`](crate::Error::Argument) if the lengths are not those of all
    /// ranks or do not add up to the tensors'. Over host memory a rank that sends another number of elements than is received
    /// is a [`Failure`](crate::Error::Failure).
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &Tensor<T>,
        sends: &[usize],
        output: &mut Tensor<T>,
        receives: &[usize],
    ) -> Result<()> {
        const OPERATION: &str = "all_to_all_v";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(input);
        check::expect_pair(OPERATION, input, output, &stream)?;
        for (name, counts, operand, len) in
            [("sends", sends, "input", input.len()), ("receives", receives, "output", output.len())]
        {
            if counts.len() != self.size() {
                let expected = format!("a length for each of {} ranks", self.size());
                return Err(argument(OPERATION, name, expected, counts.len()));
            }
            let total = counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
            expect_count(OPERATION, operand, len, total)?;
        }
        self.backend.all_to_all(call::<T>(Operation::AllToAllV, 0), [sends, receives], input, output, &stream)
    }

    /// Sends a tensor to rank `to`, which [receives](Self::recv) it. Sends to one rank arrive in order.
    ///
    /// Two ranks that send to each other on one stream use [`send_recv`](Self::send_recv): NCCL would wait for ever otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if the tensor is not contiguous, or the rank is this one or does not exist;
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn send<T: Element>(&self, tensor: &Tensor<T>, to: usize) -> Result<()> {
        const OPERATION: &str = "send";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(tensor);
        expect_tensor(OPERATION, "tensor", tensor, &stream)?;
        self.expect_other(OPERATION, "to", to)?;
        let call = call::<T>(Operation::PointToPoint, tensor.len());
        let transfers = PointToPoint { send: Some((call, tensor, to)), receive: None };
        self.backend.point_to_point(transfers, &stream)
    }

    /// Receives what rank `from` [sends](Self::send), of the same type and size.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn recv<T: Element>(&self, tensor: &mut Tensor<T>, from: usize) -> Result<()> {
        const OPERATION: &str = "recv";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(tensor);
        expect_tensor(OPERATION, "tensor", tensor, &stream)?;
        self.expect_other(OPERATION, "from", from)?;
        let call = call::<T>(Operation::PointToPoint, tensor.len());
        let transfers = PointToPoint { send: None, receive: Some((call, tensor, from)) };
        self.backend.point_to_point(transfers, &stream)
    }

    /// Sends to one rank and receives from one, which may be the same, at the same time.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::Argument`](crate::Error::Argument) if the tensors share memory.
    pub fn send_recv<T: Element>(
        &self,
        (input, to): (&Tensor<T>, usize),
        (output, from): (&mut Tensor<T>, usize),
    ) -> Result<()> {
        const OPERATION: &str = "send_recv";
        let _range = trace::operation(OPERATION);
        let stream = self.stream_for(input);
        check::expect_pair(OPERATION, input, output, &stream)?;
        self.expect_other(OPERATION, "to", to)?;
        self.expect_other(OPERATION, "from", from)?;
        let of = |len| call::<T>(Operation::PointToPoint, len);
        let receive = Some((of(output.len()), output as &mut dyn Buffer, from));
        let transfers = PointToPoint { send: Some((of(input.len()), input, to)), receive };
        self.backend.point_to_point(transfers, &stream)
    }

    /// Waits until all ranks have come here. With NCCL also their work on this communicator's stream is done then.
    ///
    /// # Errors
    ///
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more.
    pub fn barrier(&self, device: &Device) -> Result<()> {
        let _range = trace::operation("barrier");
        let call = Call { group: 0, number: 0, operation: Operation::Barrier, dtype: DType::U8, count: 0 };
        self.backend.barrier(call, &self.stream_on(device))
    }

    /// Waits until the work on this communicator's stream is done; unlike [`Stream::synchronize`] it returns with a failure if
    /// a rank is gone, or work does not end within the time limit.
    ///
    /// # Errors
    ///
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more, [`Device`](crate::Error::Device) if the
    /// work failed.
    pub fn synchronize(&self, device: &Device) -> Result<()> {
        self.backend.synchronize(&self.stream_on(device))
    }

    /// Bytes of any number from each rank, in the order of the ranks. They pass through host memory.
    ///
    /// # Errors
    ///
    /// [`Failure`](crate::Error::Failure) if the ranks cannot work together any more, [`Argument`](crate::Error::Argument) if
    /// there is no way over host memory.
    pub fn gather_bytes(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let Some(host) = self.backend.host() else {
            return Err(argument(
                "gather_bytes",
                "communicator",
                "one with a way over host memory",
                "without",
            ));
        };
        Ok(host.agree(bytes)?.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    fn stream_on(&self, device: &Device) -> Stream {
        match &self.stream {
            Some(stream) if stream.device() == device => stream.clone(),
            _ => device.default_stream(),
        }
    }

    /// The stream that the caller has asked for, which the checks hold against the tensor's device, or the device's.
    fn stream_for<T: Element>(&self, tensor: &Tensor<T>) -> Stream {
        self.stream.clone().unwrap_or_else(|| tensor.device().default_stream())
    }

    fn expect_other(&self, operation: &'static str, name: &'static str, rank: usize) -> Result<()> {
        expect_rank(operation, name, rank, self.size())?;
        if rank == self.rank() {
            return Err(argument(operation, name, "another rank than this one", rank));
        }
        Ok(())
    }
}

/// The name of the operation that [`Communicator::gather`] prepares.
const ALL_GATHER: &str = "all_gather";

fn call<T: Element>(operation: Operation, count: usize) -> Call {
    Call { group: 0, number: 0, operation, dtype: T::DTYPE, count }
}
