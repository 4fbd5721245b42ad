//! Ranks as GPUs, whose tensors NCCL carries.
//!
//! Communicators do not block: NCCL's calls return at once, and are polled for at most the time limit. A thread watches what
//! has been enqueued (`watch`). The ranks agree over the communicator in host memory that they are made from.

mod library;
mod watch;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use cudarc::nccl::sys::{ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use warpsmith::stream::Operand;
use warpsmith::{DType, Device, DeviceKind, Stream};

use super::Communicator;
use super::backend::{Backend, Buffer, Gather, PointToPoint};
use super::call::{Call, Operation, Reduction};
use super::host::HostRank;
use crate::digest::digest;
use crate::error::{Error, Result, argument};
use library::Library;
use watch::{Comm, Watched};

const OPERATION: &str = "Communicator::nccl";
/// The variable that turns multicast objects off.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";
/// A configuration's mark, and what stands for a value that is not given.
const MAGIC: u32 = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;
/// The version whose configuration `cudarc` has: 2.30. An older library reads the beginning of it.
const CONFIG_VERSION: c_int = 23_000;

/// Multiprocessors for calls beside products unless another number is asked for.
const FREE_MULTIPROCESSORS: u32 = 16;

/// How NCCL is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclOptions {
    /// Whether ranks compare each collective over host memory before it is enqueued. Then ranks that disagree get an error at
    /// once, instead of waiting for the time limit. The host waits in every call.
    pub compares_calls: bool,
    /// Thread blocks of a call's kernel at most, at least 1; NCCL's choice where it is not set. Each takes a multiprocessor that a
    /// product beside it cannot have; too few do not fill the links. All ranks give the same number.
    pub max_ctas: Option<u32>,
    /// Multiprocessors that products [beside](Communicator::beside) calls leave to these. Where it is not set as many as
    /// `max_ctas`, or 16 where that is not set either. With more of NCCL's thread blocks than there are free multiprocessors, the
    /// others wait for a product.
    pub multiprocessors: Option<u32>,
}

impl NcclOptions {
    /// Compares each collective over host memory first.
    #[must_use]
    pub fn comparing_calls(self) -> Self {
        Self { compares_calls: true, ..self }
    }

    /// Limits the thread blocks of a call's kernel.
    #[must_use]
    pub fn with_max_ctas(self, max_ctas: impl Into<Option<u32>>) -> Self {
        Self { max_ctas: max_ctas.into(), ..self }
    }

    /// Has products beside calls leave so many multiprocessors to them; none with 0.
    #[must_use]
    pub fn with_multiprocessors(self, multiprocessors: impl Into<Option<u32>>) -> Self {
        Self { multiprocessors: multiprocessors.into(), ..self }
    }

    /// What products beside calls leave.
    fn free_multiprocessors(self) -> u32 {
        self.multiprocessors.or(self.max_ctas).unwrap_or(FREE_MULTIPROCESSORS)
    }
}

/// The version of NCCL that is found, such as `2.28.3`.
///
/// # Errors
///
/// [`Error::Library`] if NCCL is not found, or is older than 2.14.
pub fn nccl_version() -> Result<String> {
    Ok(Library::get()?.version_text())
}

/// One rank of a NCCL communicator.
pub(crate) struct NcclRank {
    rank: usize,
    size: usize,
    device: Device,
    library: &'static Library,
    options: NcclOptions,
    /// Dropped before the host's end, so that the others do not take this rank for lost while NCCL ends.
    watched: Watched,
    host: Arc<dyn Backend>,
}

/// What a rank tells the others.
struct Introduction {
    host: String,
    device: String,
    id: Vec<u8>,
}

pub(crate) fn create(host: &Communicator, device: &Device, options: NcclOptions) -> Result<NcclRank> {
    let DeviceKind::Cuda(_) = device.kind() else {
        return Err(argument(OPERATION, "device", "a GPU", device));
    };
    let Some(agreement) = host.backend.host() else {
        return Err(argument(OPERATION, "host", "a communicator over host memory", host.backend.name()));
    };
    let max_ctas = max_ctas(options)?;
    expect_no_multicast(std::env::var(MULTICAST).ok())?;
    let library = Library::get()?;
    let _current = device.make_current()?;
    let (rank, size) = (host.rank(), host.size());
    let id = introduce(agreement, library, device)?;
    let limit = agreement.limit();
    // It is another one for each communicator, and the same on all ranks.
    let group = digest(&id.internal.map(|byte| byte as u8));
    let comm = Comm::create(library, [rank, size], id, config(library, max_ctas), limit, &|| {
        agreement.inbox().failure()
    })
    .map_err(|failure| agreement.fail(failure))?;
    let watched = Watched::start(comm, group, host.backend.clone(), device.clone(), limit)?;
    Ok(NcclRank { rank, size, device: device.clone(), library, options, watched, host: host.backend.clone() })
}

fn expect_no_multicast(value: Option<String>) -> Result<()> {
    if value.as_deref() == Some("0") {
        return Ok(());
    }
    Err(Error::Environment {
        variable: MULTICAST.into(),
        expected: "0 when the process starts, so that NCCL creates no multicast objects".into(),
        actual: value.map_or_else(|| "not set".into(), |value| format!("`{value}`")),
    })
}

/// The id of the new communicator, which rank 0 makes. No two ranks have the same GPU.
fn introduce(host: &HostRank, library: &Library, device: &Device) -> Result<ncclUniqueId> {
    let id = match host.rank() {
        0 => unique_id(library)
            .map_err(|code| host.fail(library.failure(OPERATION, code, std::ptr::null_mut())))?,
        _ => Vec::new(),
    };
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let gpu = match device.properties().pci_address {
        Some([domain, bus, device]) => format!("the GPU at {domain:04x}:{bus:02x}:{device:02x}"),
        None => device.to_string(),
    };
    let own = Introduction { host: machine.trim().into(), device: gpu, id };
    let all = host.agree(own.encode())?;
    let all: Vec<_> = all.iter().filter_map(|bytes| Introduction::decode(bytes)).collect();
    for (second, other) in all.iter().enumerate() {
        let is_same = |one: &Introduction| one.host == other.host && one.device == other.device;
        if let Some(first) = all[..second].iter().position(is_same) {
            return Err(Error::SharedDevice { ranks: [first, second], device: other.device.clone() });
        }
    }
    let mut id = ncclUniqueId { internal: [0; 128] };
    let bytes = all.first().map(|first| first.id.as_slice()).unwrap_or_default();
    for (to, &from) in id.internal.iter_mut().zip(bytes) {
        *to = from as _;
    }
    Ok(id)
}

fn unique_id(library: &Library) -> std::result::Result<Vec<u8>, c_int> {
    let mut id = MaybeUninit::<ncclUniqueId>::zeroed();
    // SAFETY: the id is written to a local variable, whose bytes may be any.
    let (code, id) = unsafe { ((library.get_unique_id)(id.as_mut_ptr()), id.assume_init()) };
    match code {
        library::SUCCESS => Ok(id.internal.iter().map(|&byte| byte as u8).collect()),
        code => Err(code),
    }
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&(&self.host, &self.device, &self.id)).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (host, device, id) = serde_json::from_slice(bytes).ok()?;
        Some(Self { host, device, id })
    }
}

/// NCCL's number for the most thread blocks.
fn max_ctas(options: NcclOptions) -> Result<c_int> {
    match options.max_ctas.map(c_int::try_from) {
        None => Ok(UNDEFINED),
        Some(Ok(number)) if number > 0 => Ok(number),
        Some(_) => {
            let actual = options.max_ctas.unwrap_or_default();
            Err(argument(OPERATION, "max_ctas", format!("1 to {}", c_int::MAX), actual))
        }
    }
}

/// Calls return at once; all else that is not asked for is NCCL's choice.
fn config(library: &Library, max_ctas: c_int) -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: library.version().min(CONFIG_VERSION).unsigned_abs(),
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: max_ctas,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

/// NCCL's number of a type.
fn number_of(operation: &'static str, dtype: DType) -> Result<c_int> {
    use ncclDataType_t as N;
    Ok(match dtype {
        DType::F8E4M3 => N::ncclFloat8e4m3,
        DType::F8E5M2 => N::ncclFloat8e5m2,
        DType::F16 => N::ncclFloat16,
        DType::Bf16 => N::ncclBfloat16,
        DType::F32 => N::ncclFloat32,
        DType::F64 => N::ncclFloat64,
        DType::U8 => N::ncclUint8,
        DType::I32 => N::ncclInt32,
        DType::U32 => N::ncclUint32,
        DType::I64 => N::ncclInt64,
        other => return Err(argument(operation, "type", "a type that NCCL has", other)),
    } as c_int)
}

fn number_of_reduction(reduction: Reduction) -> c_int {
    let number = match reduction {
        Reduction::Sum => ncclRedOp_t::ncclSum,
        Reduction::Mean => ncclRedOp_t::ncclAvg,
        Reduction::Max => ncclRedOp_t::ncclMax,
        Reduction::Min => ncclRedOp_t::ncclMin,
    };
    number as c_int
}

fn read(buffer: &dyn Buffer) -> *const c_void {
    buffer.address() as *const c_void
}

fn written(buffer: &dyn Buffer) -> *mut c_void {
    buffer.address() as *mut c_void
}

/// A number of NCCL's for a rank, which is below one that fits.
fn peer(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

impl NcclRank {
    /// Enqueues what `work` does, ordered with all other uses of the operands.
    fn enqueue(
        &self,
        call: &Call,
        operands: &[&dyn Operand],
        stream: &Stream,
        work: impl FnOnce(&Library, &Comm, *mut c_void) -> c_int,
    ) -> Result<()> {
        self.enqueue_between(call, [None, None], operands, stream, work)
    }

    /// As `enqueue`, of a call that sends to one rank and receives from one.
    fn enqueue_between(
        &self,
        call: &Call,
        partners: [Option<usize>; 2],
        operands: &[&dyn Operand],
        stream: &Stream,
        work: impl FnOnce(&Library, &Comm, *mut c_void) -> c_int,
    ) -> Result<()> {
        if *stream.device() != self.device {
            let expected = format!("on {}, as the communicator is", self.device);
            return Err(argument(OPERATION, "tensor", expected, format!("on {}", stream.device())));
        }
        let (call, partners) = &self.watched.numbered(call, partners);
        if self.options.compares_calls && !is_between_two(call) {
            self.compare(call)?;
        }
        if call.count == 0 && !has_counts_of_its_own(call) {
            // There are no elements on any rank, and no addresses.
            return Ok(());
        }
        let _current = self.device.make_current()?;
        let handle = stream.cuda_handle().unwrap_or(std::ptr::null_mut());
        let enqueued = stream.with_operands(operands, || {
            Ok(self.watched.enqueue(call, partners, |comm| work(self.library, comm, handle)))
        })?;
        enqueued?;
        if stream.is_capturing() {
            // Nobody knows how often a graph is launched.
            self.watched.count_no_longer();
            return Ok(());
        }
        self.watched.watch(*call, *partners, stream.record()?);
        Ok(())
    }

    /// Finds out whether all ranks make the same call.
    fn compare(&self, call: &Call) -> Result<()> {
        let Some(host) = self.host.host() else { return Ok(()) };
        let all = host.agree(call.encode().to_vec())?;
        for (other, bytes) in all.iter().enumerate() {
            let theirs = <&[u8; Call::BYTES]>::try_from(bytes.as_slice()).ok().and_then(Call::decode);
            if theirs != Some(*call) {
                let actual = theirs.map_or_else(|| "nothing known".into(), |call| call.to_string());
                return Err(host.disagree(call, other, actual));
            }
        }
        Ok(())
    }
}

fn is_between_two(call: &Call) -> bool {
    call.operation == Operation::PointToPoint
}

/// Whether the call's count says nothing of how much there is to do.
fn has_counts_of_its_own(call: &Call) -> bool {
    matches!(call.operation, Operation::AllToAllV | Operation::PointToPoint)
}

impl Backend for NcclRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn name(&self) -> &'static str {
        "nccl"
    }

    fn host(&self) -> Option<&HostRank> {
        self.host.host()
    }

    fn all_reduce(
        &self,
        call: Call,
        reduction: Reduction,
        tensor: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, reduction) = (number_of("all_reduce", call.dtype)?, number_of_reduction(reduction));
        let (from, to) = (read(tensor), written(tensor));
        self.enqueue(&call, &[tensor.operand()], stream, |library, comm, stream| {
            // SAFETY: the tensor has so many elements of the type, and `with_operands` orders the work with its other uses.
            unsafe { (library.all_reduce)(from, to, call.count, dtype, reduction, comm.raw(), stream) }
        })
    }

    fn reduce_scatter(
        &self,
        call: Call,
        reduction: Reduction,
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, reduction) = (number_of("reduce_scatter", call.dtype)?, number_of_reduction(reduction));
        let (from, to) = (read(input), written(output));
        self.enqueue(&call, &[input.operand(), output.operand()], stream, |library, comm, stream| {
            // SAFETY: the output has so many elements, the input as many for each rank; as above.
            unsafe { (library.reduce_scatter)(from, to, call.count, dtype, reduction, comm.raw(), stream) }
        })
    }

    fn all_gather(
        &self,
        call: Call,
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()> {
        let dtype = number_of("all_gather", call.dtype)?;
        let (from, to) = (read(input), written(output));
        self.enqueue(&call, &[input.operand(), output.operand()], stream, |library, comm, stream| {
            // SAFETY: the input has so many elements, the output as many for each rank; as above.
            unsafe { (library.all_gather)(from, to, call.count, dtype, comm.raw(), stream) }
        })
    }

    fn all_gathers(&self, parts: &mut [Gather<'_>], stream: &Stream) -> Result<()> {
        // Parts without elements have no addresses.
        let parts: Vec<_> = parts.iter().filter(|part| part.call.count > 0).collect();
        let Some((first, others)) = parts.split_first() else { return Ok(()) };
        if self.options.compares_calls {
            // The first one is compared when it is enqueued.
            others.iter().try_for_each(|part| self.compare(&part.call))?;
        }
        let (mut operands, mut gathers) = (Vec::new(), Vec::new());
        for part in &parts {
            operands.extend([part.input.operand(), part.output.operand()]);
            let dtype = number_of("all_gather", part.call.dtype)?;
            gathers.push((read(part.input), written(&*part.output), part.call.count, dtype));
        }
        self.enqueue(&first.call, &operands, stream, |library, comm, stream| {
            group(library, || {
                for &(from, to, count, dtype) in &gathers {
                    // SAFETY: each input has so many elements, each output as many for each rank; as above.
                    let code = unsafe { (library.all_gather)(from, to, count, dtype, comm.raw(), stream) };
                    if is_error(code) {
                        return code;
                    }
                }
                library::SUCCESS
            })
        })
    }

    fn broadcast(&self, call: Call, root: usize, tensor: &mut dyn Buffer, stream: &Stream) -> Result<()> {
        let dtype = number_of("broadcast", call.dtype)?;
        let (from, to) = (read(tensor), written(tensor));
        self.enqueue(&call, &[tensor.operand()], stream, |library, comm, stream| {
            // SAFETY: the tensor has so many elements of the type; as above.
            unsafe { (library.broadcast)(from, to, call.count, dtype, peer(root), comm.raw(), stream) }
        })
    }

    fn all_to_all(
        &self,
        call: Call,
        [sends, receives]: [&[usize]; 2],
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, size) = (number_of("all_to_all", call.dtype)?, call.dtype.size());
        let (mut from, mut to) = (read(input).cast::<u8>(), written(output).cast::<u8>());
        self.enqueue(&call, &[input.operand(), output.operand()], stream, |library, comm, stream| {
            group(library, || {
                for (rank, (&send, &receive)) in sends.iter().zip(receives).enumerate() {
                    // SAFETY: the parts of all ranks add up to the tensors' elements; as above.
                    let codes = unsafe {
                        let sent = (library.send)(from.cast(), send, dtype, peer(rank), comm.raw(), stream);
                        let received =
                            (library.recv)(to.cast(), receive, dtype, peer(rank), comm.raw(), stream);
                        [sent, received]
                    };
                    from = from.wrapping_add(send * size);
                    to = to.wrapping_add(receive * size);
                    if let Some(code) = codes.into_iter().find(|&code| is_error(code)) {
                        return code;
                    }
                }
                library::SUCCESS
            })
        })
    }

    fn point_to_point(&self, transfers: PointToPoint<'_>, stream: &Stream) -> Result<()> {
        let Some(call) =
            transfers.send.as_ref().map(|send| send.0).or(transfers.receive.as_ref().map(|one| one.0))
        else {
            return Ok(());
        };
        let dtype = number_of("send or recv", call.dtype)?;
        let sent = transfers.send.as_ref().map(|(call, buffer, to)| (read(*buffer), call.count, peer(*to)));
        let received = transfers
            .receive
            .as_ref()
            .map(|(call, buffer, from)| (written(&**buffer), call.count, peer(*from)));
        let send = transfers.send.as_ref().map(|(_, buffer, _)| buffer.operand());
        let receive = transfers.receive.as_ref().map(|(_, buffer, _)| buffer.operand());
        let operands: Vec<_> = send.into_iter().chain(receive).collect();
        let partners =
            [transfers.send.as_ref().map(|send| send.2), transfers.receive.as_ref().map(|one| one.2)];
        self.enqueue_between(&call, partners, &operands, stream, |library, comm, stream| {
            group(library, || {
                if let Some((from, count, to)) = sent {
                    // SAFETY: the tensor has so many elements of the type; as above.
                    let code = unsafe { (library.send)(from, count, dtype, to, comm.raw(), stream) };
                    if is_error(code) {
                        return code;
                    }
                }
                match received {
                    // SAFETY: as above.
                    Some((to, count, from)) => unsafe {
                        (library.recv)(to, count, dtype, from, comm.raw(), stream)
                    },
                    None => library::SUCCESS,
                }
            })
        })
    }

    fn barrier(&self, call: Call, stream: &Stream) -> Result<()> {
        self.synchronize(stream)?;
        self.host.barrier(call, stream)
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        self.watched.wait(stream.record()?)
    }

    fn multiprocessors(&self) -> u32 {
        self.options.free_multiprocessors()
    }

    fn nccl_handle(&self) -> Option<*mut c_void> {
        // What else is done with it is not counted.
        self.watched.count_no_longer();
        self.watched.handle()
    }
}

fn is_error(code: c_int) -> bool {
    code != library::SUCCESS && code != library::IN_PROGRESS
}

/// Calls of NCCL that are enqueued as one. The group ends whatever came of them; the first error counts.
fn group(library: &Library, work: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: groups need nothing, and each that is started is ended.
    let started = unsafe { (library.group_start)() };
    if is_error(started) {
        return started;
    }
    let code = work();
    // SAFETY: as above.
    let ended = unsafe { (library.group_end)() };
    if is_error(code) { code } else { ended }
}

/// How long a poll pauses.
const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::{UNDEFINED, expect_no_multicast, max_ctas};
    use crate::{Communicator, NcclOptions};

    #[test]
    fn multicast_has_to_be_off() {
        assert!(expect_no_multicast(Some("0".into())).is_ok());
        for value in [None, Some("1".to_owned()), Some(String::new())] {
            let error = expect_no_multicast(value).expect_err("it may be on").to_string();
            assert!(error.contains("NCCL_NVLS_ENABLE") && error.contains("expected 0"), "{error}");
        }
    }

    #[test]
    fn only_gpus_have_nccl() -> crate::Result<()> {
        let host = Communicator::local(1, std::time::Duration::from_secs(1))?.remove(0);
        for device in [warpsmith::Device::cpu(), warpsmith::Device::emulator()] {
            let error = Communicator::nccl(&host, &device, NcclOptions::default()).expect_err("it is no GPU");
            assert!(error.to_string().contains("expected a GPU"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn products_leave_as_many_multiprocessors_as_calls_have_thread_blocks() {
        let options = NcclOptions::default();
        assert_eq!(options.free_multiprocessors(), 16);
        assert_eq!(options.with_max_ctas(8).free_multiprocessors(), 8);
        assert_eq!(options.with_max_ctas(8).with_multiprocessors(0).free_multiprocessors(), 0);
        assert_eq!(options.with_multiprocessors(24).with_max_ctas(8).free_multiprocessors(), 24);
    }

    #[test]
    fn thread_blocks_are_at_least_one() {
        let of = |number: u32| max_ctas(NcclOptions::default().with_max_ctas(number));
        assert_eq!(of(1).ok(), Some(1));
        assert_eq!(max_ctas(NcclOptions::default()).ok(), Some(UNDEFINED));
        for number in [0, u32::MAX] {
            let error = of(number).expect_err("there are no such numbers of blocks").to_string();
            assert!(error.contains(&format!("max_ctas is {number}")), "{error}");
        }
    }
}
