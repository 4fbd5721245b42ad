//! What an attention's builder has been told.

use super::launch::Way;
use super::rotary::Rotary;
use crate::cpu::Window;
use crate::device::Device;
use crate::stream::Operand;
use crate::tensor::{Element, Span, Tensor};

/// The operands and options of an attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a, T: Element, K: Element> {
    pub(super) q: &'a Tensor<T>,
    pub(super) k: &'a Tensor<K>,
    pub(super) v: &'a Tensor<K>,
    /// Of k and of v.
    pub(super) scales: [Option<&'a Tensor<f32>>; 2],
    pub(super) scale: Option<f32>,
    pub(super) window: Window,
    pub(super) soft_cap: Option<f32>,
    pub(super) mask: Option<&'a Tensor<u8>>,
    pub(super) bias: Option<&'a Tensor<T>>,
    pub(super) block_mask: Option<BlockMask<'a>>,
    pub(super) slopes: Option<&'a Tensor<f32>>,
    pub(super) sinks: Option<&'a Tensor<f32>>,
    /// Of q and of k.
    pub(super) lengths: [Option<&'a Tensor<u32>>; 2],
    pub(super) packing: Option<Packing<'a>>,
    /// Of each sequence, which pages of k and v are its own.
    pub(super) pages: Option<&'a Tensor<u32>>,
    /// How q and k are turned first.
    pub(super) rotary: Option<Rotary<'a>>,
    /// How it is computed, where it can be computed so.
    pub(super) way: Option<Way>,
}

/// A mask of blocks of `[rows, keys]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockMask<'a> {
    pub(super) mask: &'a Tensor<u8>,
    pub(super) sizes: [u32; 2],
}

/// Where packed sequences start and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing<'a> {
    pub(super) q: &'a Tensor<u32>,
    pub(super) k: &'a Tensor<u32>,
}

/// A tensor that an attention reads, whatever its type.
#[derive(Clone, Copy)]
pub(super) struct Input<'t> {
    pub(super) name: &'static str,
    pub(super) device: &'t Device,
    pub(super) span: Span<'t>,
}

impl<'t> Input<'t> {
    fn new<U: Element>(name: &'static str, tensor: &'t Tensor<U>) -> Self {
        Self { name, device: tensor.device(), span: tensor.span() }
    }
}

impl<'a, T: Element, K: Element> Operands<'a, T, K> {
    pub(super) fn new(q: &'a Tensor<T>, k: &'a Tensor<K>, v: &'a Tensor<K>) -> Self {
        Self {
            q,
            k,
            v,
            scales: [None; 2],
            scale: None,
            window: Window::default(),
            soft_cap: None,
            mask: None,
            bias: None,
            block_mask: None,
            slopes: None,
            sinks: None,
            lengths: [None; 2],
            packing: None,
            pages: None,
            rotary: None,
            way: None,
        }
    }

    /// What is read beside q, k and v.
    pub(super) fn options(&self) -> impl Iterator<Item = &'a dyn Operand> + use<'a, T, K> {
        let ([lengths_q, lengths_k], [k_scale, v_scale]) = (self.lengths, self.scales);
        [
            self.mask.map(|mask| mask as &dyn Operand),
            self.bias.map(|bias| bias as &dyn Operand),
            self.block_mask.map(|blocks| blocks.mask as &dyn Operand),
            self.slopes.map(|slopes| slopes as &dyn Operand),
            self.sinks.map(|sinks| sinks as &dyn Operand),
            lengths_q.map(|lengths| lengths as &dyn Operand),
            lengths_k.map(|lengths| lengths as &dyn Operand),
            self.packing.map(|packing| packing.q as &dyn Operand),
            self.packing.map(|packing| packing.k as &dyn Operand),
            self.pages.map(|table| table as &dyn Operand),
            k_scale.map(|scales| scales as &dyn Operand),
            v_scale.map(|scales| scales as &dyn Operand),
        ]
        .into_iter()
        .flatten()
    }

    /// Everything that is read.
    pub(super) fn inputs(&self) -> impl Iterator<Item = Input<'a>> + use<'_, 'a, T, K> {
        let ([lengths_q, lengths_k], [k_scale, v_scale]) = (self.lengths, self.scales);
        [
            Some(Input::new("q", self.q)),
            Some(Input::new("k", self.k)),
            Some(Input::new("v", self.v)),
            self.mask.map(|mask| Input::new("mask", mask)),
            self.bias.map(|bias| Input::new("bias", bias)),
            self.block_mask.map(|BlockMask { mask, .. }| Input::new("block_mask", mask)),
            self.slopes.map(|slopes| Input::new("slopes", slopes)),
            self.sinks.map(|sinks| Input::new("sinks", sinks)),
            lengths_q.map(|lengths| Input::new("lengths_q", lengths)),
            lengths_k.map(|lengths| Input::new("lengths_k", lengths)),
            self.packing.map(|packing| Input::new("offsets_q", packing.q)),
            self.packing.map(|packing| Input::new("offsets_k", packing.k)),
            self.pages.map(|table| Input::new("page_table", table)),
            k_scale.map(|scales| Input::new("k_scale", scales)),
            v_scale.map(|scales| Input::new("v_scale", scales)),
        ]
        .into_iter()
        .flatten()
        .chain(self.rotary.iter().map(|rotary| Input::new("rotary table", rotary.angles())))
        .chain(
            self.rotary
                .iter()
                .flat_map(|rotary| rotary.tensors())
                .flatten()
                .map(|(name, x)| Input::new(name, x)),
        )
    }
}
