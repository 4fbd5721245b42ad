//! What stands behind a communicator.

use std::ffi::c_void;

use bytemuck::Pod;
use warpsmith::stream::Operand;
use warpsmith::{Element, Stream, Tensor};

use super::call::{Call, Reduction};
use super::host::HostRank;
use crate::error::Result;

/// A contiguous tensor of any type.
pub(crate) trait Buffer {
    /// Its bytes, once its work is done.
    fn read(&self) -> warpsmith::Result<Vec<u8>>;
    fn write(&mut self, bytes: &[u8]) -> warpsmith::Result<()>;
    /// The device's address of the first element.
    fn address(&self) -> u64;
    fn operand(&self) -> &dyn Operand;
}

impl<T: Element> Buffer for Tensor<T> {
    fn read(&self) -> warpsmith::Result<Vec<u8>> {
        Ok(bytemuck::cast_slice(&self.to_vec()?).to_vec())
    }

    fn write(&mut self, bytes: &[u8]) -> warpsmith::Result<()> {
        self.write_slice(&elements::<T>(bytes))
    }

    fn address(&self) -> u64 {
        self.device_address()
    }

    fn operand(&self) -> &dyn Operand {
        self
    }
}

fn elements<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// What a rank sends to another and receives from one, at the same time.
pub(crate) struct PointToPoint<'a> {
    pub(crate) send: Option<(Call, &'a dyn Buffer, usize)>,
    pub(crate) receive: Option<(Call, &'a mut dyn Buffer, usize)>,
}

/// A tensor of each rank that all ranks get.
pub(crate) struct Gather<'a> {
    pub(crate) call: Call,
    pub(crate) input: &'a dyn Buffer,
    pub(crate) output: &'a mut dyn Buffer,
}

/// One rank of a communicator. Arguments have been checked: shapes fit, tensors are contiguous and on the stream's device,
/// ranks exist.
pub(crate) trait Backend: Send + Sync {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    fn name(&self) -> &'static str;
    /// The communicator over host memory that this is, or that it has beside it.
    fn host(&self) -> Option<&HostRank>;
    fn all_reduce(
        &self,
        call: Call,
        reduction: Reduction,
        tensor: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()>;
    fn reduce_scatter(
        &self,
        call: Call,
        reduction: Reduction,
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()>;
    fn all_gather(
        &self,
        call: Call,
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()>;
    /// Several of them, on one stream.
    fn all_gathers(&self, parts: &mut [Gather<'_>], stream: &Stream) -> Result<()> {
        parts.iter_mut().try_for_each(|part| self.all_gather(part.call, part.input, part.output, stream))
    }
    fn broadcast(&self, call: Call, root: usize, tensor: &mut dyn Buffer, stream: &Stream) -> Result<()>;
    /// With the elements that go to each rank, and those that come from each.
    fn all_to_all(
        &self,
        call: Call,
        counts: [&[usize]; 2],
        input: &dyn Buffer,
        output: &mut dyn Buffer,
        stream: &Stream,
    ) -> Result<()>;
    fn point_to_point(&self, transfers: PointToPoint<'_>, stream: &Stream) -> Result<()>;
    fn barrier(&self, call: Call, stream: &Stream) -> Result<()>;
    fn synchronize(&self, stream: &Stream) -> Result<()>;
    /// How many multiprocessors its kernels need beside those of products.
    fn multiprocessors(&self) -> u32 {
        0
    }
    /// NCCL's handle.
    fn nccl_handle(&self) -> Option<*mut c_void> {
        None
    }
}
