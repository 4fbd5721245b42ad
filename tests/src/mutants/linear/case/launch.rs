//! A case's launch: its data in a machine's memory, the arguments of each family's kernels, and what they have given.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::Layouts;
use warpsmith_dsl::gemm::parts::Parts;
use warpsmith_dsl::gemm::wgmma::{CHUNK, Exchange, PART, U_BOX_COLUMNS};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg, TensorMap};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::fp8::Fp8Types;
use warpsmith_kernels::linear::LinearParams;
use warpsmith_kernels::linear_dots::DotsParams;
use warpsmith_kernels::linear_fp8::Fp8Params;
use warpsmith_kernels::linear_fp8_ada::Fp8AdaParams;
use warpsmith_kernels::linear_fp8_hopper::Fp8HopperParams;
use warpsmith_kernels::linear_hopper::HopperParams;
use warpsmith_kernels::linear_hopper_f32::HopperF32Params;
use warpsmith_kernels::linear_narrow::NarrowParams;
use warpsmith_kernels::linear_skinny::SkinnyParams;
use warpsmith_kernels::linear_strided::StridedParams;
use warpsmith_kernels::linear_sums::{SumsParams, WARP_COLUMNS, WARPS};
use warpsmith_kernels::linear_update::LinearUpdateParams;
use warpsmith_kernels::linear_update_hopper::{UpdateFewRowsParams, UpdateHopperParams};

use super::super::super::Problem;
use super::super::instance::Family;
use super::super::size::{Fused, Scales, Size};
use super::super::update::Update;
use super::{BETA, Case, map, part_columns};

/// Where a case's data are in a machine's memory.
struct Addresses {
    operands: [u64; 2],
    /// The same once more, of which a second pair of operands is a part.
    joined: [u64; 2],
    /// Vᵀ, U and the codes.
    update: [u64; 4],
    /// What tiles exchange, and the counters of it.
    exchange: [u64; 2],
    bias: u64,
    scales: [u64; 2],
    residual: u64,
    parts: u64,
    y: u64,
    mask: u64,
    preactivation: u64,
}

impl Case {
    fn place(&self, machine: &Machine) -> Result<Addresses, LaunchError> {
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            if bytes.is_empty() {
                return Ok(0);
            }
            let address = machine.allocate(bytes.len() as u64)?;
            machine.write(address, bytes)?;
            Ok(address)
        };
        let operands =
            || Ok::<_, LaunchError>([place(&self.operands[0].bytes)?, place(&self.operands[1].bytes)?]);
        let joined = if self.instance.is_joined { operands()? } else { [0; 2] };
        // The launch before makes them.
        for address in joined.into_iter().filter(|&address| address != 0) {
            machine.assume_written(address)?;
        }
        Ok(Addresses {
            operands: operands()?,
            joined,
            update: match &self.update {
                Some(Update { bytes: [vt, u, first, second], .. }) => {
                    [place(vt)?, place(u)?, place(first)?, place(second)?]
                }
                None => [0; 4],
            },
            exchange: self.exchange_words().map_or(Ok([0; 2]), |[records, counters]| {
                let addresses = [machine.allocate(records * 4)?, machine.allocate(counters * 4)?];
                machine.fill(addresses[1], 0, counters * 4)?;
                Ok::<_, LaunchError>(addresses)
            })?,
            bias: place(&self.bias)?,
            scales: [place(&self.scales[0])?, place(&self.scales[1])?],
            residual: place(&self.residual)?,
            parts: place(&self.parts)?,
            y: place(&self.y.initial)?,
            mask: place(&self.mask.initial)?,
            preactivation: place(&self.preactivation.initial)?,
        })
    }

    /// Chunks of the ranks.
    fn chunks(&self) -> u32 {
        (self.size.ranks[0] + self.size.ranks[1]).div_ceil(CHUNK)
    }

    /// Words of what blocks exchange, and of the counters; none if they do not.
    fn exchange_words(&self) -> Option<[u64; 2]> {
        let Size { batch, m, n, parts, exchanged, .. } = self.size;
        let [tile_m, tile_n] = self.instance.tile;
        match self.instance.family {
            Family::UpdateHopper(boxes) if exchanged => {
                let strips = u64::from(m.next_multiple_of(tile_m * boxes.cluster[0]) / 16);
                Some([Exchange::record_words(strips, self.chunks()), strips])
            }
            Family::Portable if parts > 1 => {
                let tiles = u64::from(batch * m.div_ceil(tile_m) * n.div_ceil(tile_n));
                Some([tiles * u64::from(parts * tile_m * tile_n), tiles])
            }
            _ => None,
        }
    }

    fn epilogue(&self, at: &Addresses) -> LinearEpilogue<u8, u8> {
        let Fused { alpha, row_scale, column_scale, function, residual, preactivation, .. } = self.size.fused;
        let skipped = |present: bool, address: u64| if present { address + self.y.skip } else { 0 };
        LinearEpilogue {
            bias: Global::new(at.bias),
            residual: Global::new(skipped(residual, at.residual)),
            row_scale: Global::new(at.scales[0]),
            column_scale: Global::new(at.scales[1]),
            mask: GlobalMut::new(at.mask),
            preactivation: GlobalMut::new(skipped(preactivation, at.preactivation)),
            residual_stride: self.y.stride,
            residual_batch: self.y.batch_stride,
            mask_stride: self.mask.stride,
            mask_batch: self.mask.batch_stride,
            preactivation_stride: self.preactivation.stride,
            preactivation_batch: self.preactivation.batch_stride,
            row_scale_stride: (row_scale == Scales::Each).into(),
            column_scale_stride: (column_scale == Scales::Each).into(),
            alpha,
            beta: BETA,
            activation: function.activation(),
            reserved: 0,
        }
    }

    /// The maps of the first columns of X and W, of which there are so many, and of the others, of which there are so many.
    fn joined(&self, at: &Addresses, box_rows: [u32; 2]) -> ([TensorMap; 4], u32, u32) {
        let Size { m, k, n, .. } = self.size;
        let of = self.instance.input;
        // Half of them, in whole chunks.
        let first = (k / 2).next_multiple_of(of.chunk()).min(k);
        let map = |which: usize, [place, from, columns]: [u64; 3]| {
            let (operand, rows) = (&self.operands[which], [m, n][which]);
            let columns = columns as u32;
            let address = place + from * u64::from(of.bytes());
            let boxes = [128 / of.bytes(), box_rows[which], 1];
            // Columns that are not there are not read.
            let address = if columns == 0 { place } else { address };
            map(of, address, [columns, rows, 1], [operand.stride, operand.batch_stride], boxes)
        };
        let (before, behind) = (first.into(), (k - first).into());
        let first_pair = |which| map(which, [at.operands[which], 0, before]);
        let second_pair = |which| map(which, [at.joined[which], before, behind]);
        let maps = [first_pair(0), first_pair(1), second_pair(0), second_pair(1)];
        (maps, first, k - first)
    }

    /// Hands the kernel's arguments to `launch`, with the blocks of the grid.
    fn launch<R>(&self, at: &Addresses, launch: impl FnOnce(u32, &[RawArg]) -> R) -> R {
        let Size { m, n, mn, shared, second_type, clusters, halves, parts, split, .. } = self.size;
        let (batch, k) = (self.size.batch * split, self.size.part(128 / self.instance.input.bytes()));
        let [tile_m, tile_n] = self.instance.tile;
        let tiles = batch * m.div_ceil(tile_m) * n.div_ceil(tile_n);
        let (y, epilogue) = (GlobalMut::<u8>::new(at.y + self.y.skip), self.epilogue(at));
        let pointer = |which: usize| Global::<u8>::new(at.operands[which]);
        let batch_of = |which: usize| if shared[which] { 0 } else { self.operands[which].batch_stride };
        // From one row to the next, and from one column.
        let strides = |which: usize| {
            let stride = self.operands[which].stride;
            if mn[which] { [1, stride] } else { [stride, 1] }
        };
        let (stride_y, batch_y) = (self.y.stride, self.y.batch_stride);
        let maps = |box_rows: [u32; 2]| {
            let map = |which: usize| {
                self.operands[which].map(at.operands[which], &self.size, which, box_rows[which])
            };
            (map(0), map(1))
        };
        let bytes = u64::from(self.instance.output.bytes());
        let has_boxes =
            ((at.y + self.y.skip) | (u64::from(n) * bytes) | (stride_y * bytes)).is_multiple_of(16);
        let y_boxes = |row_bytes: u32| match has_boxes {
            true => map(
                self.instance.output,
                at.y + self.y.skip,
                [n, m, batch],
                [stride_y, batch_y],
                [row_bytes / bytes as u32, 16, 1],
            ),
            false => TensorMap::from_words([0; 16]),
        };
        let layouts = Layouts::K_MAJOR
            .with_a_mn(mn[0])
            .with_b_mn(mn[1])
            .with_shared_a(shared[0])
            .with_shared_b(shared[1])
            .with_parts(split);
        match self.instance.family {
            Family::Portable => {
                let params = LinearParams {
                    stride_x: self.operands[0].stride,
                    stride_w: self.operands[1].stride,
                    stride_y,
                    batch_x: batch_of(0),
                    batch_w: batch_of(1),
                    batch_y,
                    m,
                    n,
                    k,
                    reserved: 0,
                };
                let [sums, arrived] = at.exchange;
                let (sums, arrived) = (GlobalMut::new(sums), GlobalMut::new(arrived));
                let shared = Parts { sums, arrived, count: parts, ..Parts::WHOLE };
                (pointer(0), pointer(1), y, epilogue, shared, params)
                    .with_raw(|raw| launch(tiles * parts, raw))
            }
            Family::Update => {
                let Some(update) = &self.update else { return launch(0, &[]) };
                let [stride_vt, stride_u, ..] = update.strides;
                let tiles = self.size.row_tiles;
                let params = LinearUpdateParams {
                    stride_x: self.operands[0].stride,
                    stride_w: self.operands[1].stride,
                    stride_vt,
                    stride_u,
                    stride_y,
                    m,
                    n,
                    k,
                    tiles,
                };
                let [vt, u, first, second] = at.update;
                let codes = update.codes(&self.size, [first, second]);
                let (vt, u) = (Global::<u8>::new(vt), Global::<u8>::new(u));
                let blocks = m.div_ceil(tile_m) * n.div_ceil(tile_n).div_ceil(tiles);
                (pointer(0), pointer(1), vt, u, y, codes, epilogue, params)
                    .with_raw(|raw| launch(blocks, raw))
            }
            Family::UpdateHopper(boxes) => {
                let Some(update) = &self.update else { return launch(0, &[]) };
                let [stride_vt, stride_u, ..] = update.strides;
                let [vt, u, first, second] = at.update;
                let total = self.size.ranks[0] + self.size.ranks[1];
                let of = self.instance.input;
                let inner = 128 / of.bytes();
                let whole = |stride: u64| [stride, stride * u64::from(total)];
                let vt = map(of, vt, [k, total, 1], whole(stride_vt), [inner, CHUNK, 1]);
                let u = map(of, u, [n, total, 1], whole(stride_u), [U_BOX_COLUMNS, PART, 1]);
                let codes = update.codes(&self.size, [first, second]);
                let [records, counters] = at.exchange.map(GlobalMut::new);
                let is_own = (!self.size.exchanged).into();
                let exchange = Exchange { records, counters, chunks: self.chunks(), is_own };
                let has_boxes = has_boxes.into();
                let params = UpdateHopperParams { stride_y, m, n, k, has_boxes, height: 1, reserved: 0 };
                let (x, w) = maps(boxes.rows);
                (x, w, vt, u, y_boxes(boxes.stored_row_bytes), y, epilogue, codes, exchange, params)
                    .with_raw(|raw| launch(clusters * boxes.blocks(), raw))
            }
            Family::UpdateFewRows => {
                let Some(update) = &self.update else { return launch(0, &[]) };
                let [stride_vt, stride_u, ..] = update.strides;
                let [vt, u, first, second] = at.update;
                let total = self.size.ranks[0] + self.size.ranks[1];
                let of = self.instance.input;
                let vt = map(
                    of,
                    vt,
                    [k, total, 1],
                    [stride_vt, stride_vt * u64::from(total)],
                    [128 / of.bytes(), CHUNK, 1],
                );
                let codes = update.codes(&self.size, [first, second]);
                let params = UpdateFewRowsParams { stride_y, stride_u, m, n, k, reserved: 0 };
                let (x, w) = maps([tile_m, tile_n]);
                (x, w, vt, Global::<u8>::new(u), y, epilogue, codes, params)
                    .with_raw(|raw| launch(tiles, raw))
            }
            Family::Fp8Portable => {
                let params = Fp8Params { stride: self.operands[0].stride, stride_y, m, n, k, reserved: 0 };
                (pointer(0), pointer(1), y, epilogue, params).with_raw(|raw| launch(tiles, raw))
            }
            Family::Fp8Ada => {
                let [stride_x, stride_w] = [0, 1].map(|which: usize| self.operands[which].stride);
                let types = Fp8Types::new(second_type[0], second_type[1]);
                let params = Fp8AdaParams { stride_x, stride_w, stride_y, m, n, k, types };
                (pointer(0), pointer(1), y, epilogue, params).with_raw(|raw| launch(tiles, raw))
            }
            Family::Hopper(boxes) => {
                let params = HopperParams {
                    stride_y,
                    batch_y,
                    batch,
                    m,
                    n,
                    k,
                    layouts,
                    has_boxes: match (has_boxes, self.size.by_lanes) {
                        (true, true) => HopperParams::LANES_STORE,
                        _ => has_boxes.into(),
                    },
                    whole: halves[0],
                    narrow: halves[1],
                };
                let (y_boxes, blocks) = (y_boxes(boxes.stored_row_bytes), clusters * boxes.blocks());
                if self.instance.is_joined {
                    let ([x, w, g, ut], k, rank) = self.joined(at, boxes.rows);
                    let params = HopperParams { k, ..params };
                    return (x, w, g, ut, y_boxes, y, epilogue, rank, params)
                        .with_raw(|raw| launch(blocks, raw));
                }
                let (x, w) = maps(boxes.rows);
                (x, w, y_boxes, y, epilogue, params).with_raw(|raw| launch(blocks, raw))
            }
            Family::Split(boxes) => {
                let params = HopperF32Params {
                    stride_x: self.operands[0].stride,
                    stride_w: self.operands[1].stride,
                    batch_x: batch_of(0),
                    batch_w: batch_of(1),
                    stride_y,
                    batch_y,
                    batch,
                    m,
                    n,
                    k,
                    layouts,
                    reserved: 0,
                };
                let (x, w) = maps(boxes.rows);
                (x, w, pointer(0), pointer(1), y, epilogue, params)
                    .with_raw(|raw| launch(clusters * boxes.blocks(), raw))
            }
            Family::Sums => {
                let stride = u64::from(part_columns(&self.size));
                let part = stride * u64::from(m);
                let params = SumsParams { stride, part, stride_y, batch_y, m, n, batch, parts: k };
                let warps = batch * m * n.div_ceil(WARP_COLUMNS);
                (Global::<f32>::new(at.parts), y, epilogue, params)
                    .with_raw(|raw| launch(warps.div_ceil(WARPS), raw))
            }
            Family::Strided => {
                let [[row_stride_x, column_stride_x], [row_stride_w, column_stride_w]] = [0, 1].map(strides);
                let params = StridedParams {
                    row_stride_x,
                    column_stride_x,
                    batch_x: batch_of(0),
                    row_stride_w,
                    column_stride_w,
                    batch_w: batch_of(1),
                    stride_y,
                    batch_y,
                    m,
                    n,
                    k,
                    reserved: 0,
                };
                (pointer(0), pointer(1), y, epilogue, params).with_raw(|raw| launch(tiles, raw))
            }
            Family::Dots => {
                let [[stride_x, _], [stride_w, _]] = [0, 1].map(strides);
                let params = DotsParams {
                    stride_x,
                    stride_w,
                    stride_y,
                    batch_x: batch_of(0),
                    batch_w: batch_of(1),
                    batch_y,
                    m,
                    n,
                    k,
                    batch,
                    log2_warps: self.size.parts.ilog2(),
                    reserved: 0,
                };
                (pointer(0), pointer(1), y, epilogue, params).with_raw(|raw| launch(clusters.max(1), raw))
            }
            Family::Narrow => {
                let [row_stride_w, column_stride_w] = strides(1);
                let params = NarrowParams { row_stride_w, column_stride_w, m, n, k, reserved: 0 };
                (pointer(0), pointer(1), y, epilogue, params).with_raw(|raw| launch(clusters.max(1), raw))
            }
            Family::Skinny(boxes, split) => {
                let params = SkinnyParams { stride_y, batch_y, m, n, k, layouts };
                let (x, w) = maps(boxes.rows);
                // Tiles that are neighbours along N share rows of X.
                let columns = n.div_ceil(tile_n).next_multiple_of(tile_m / boxes.rows[0]);
                let tiles = batch * m.div_ceil(tile_m) * columns;
                if self.instance.is_joined {
                    let ([x, w, g, ut], k, rank) = self.joined(at, boxes.rows);
                    let params = SkinnyParams { k, ..params };
                    return (x, w, g, ut, y, epilogue, rank, params)
                        .with_raw(|raw| launch(tiles * split, raw));
                }
                (x, w, y, epilogue, params).with_raw(|raw| launch(tiles * split, raw))
            }
            Family::Fp8Hopper(boxes) => {
                let types = Fp8Types::new(second_type[0], second_type[1]);
                let has_boxes = match (has_boxes, self.size.by_lanes) {
                    (true, true) => Fp8HopperParams::LANES_STORE,
                    _ => has_boxes.into(),
                };
                let params = Fp8HopperParams { stride_y, m, n, k, types, has_boxes, parts: split };
                let (x, w) = maps(boxes.rows);
                (x, w, y_boxes(boxes.stored_row_bytes), y, epilogue, params)
                    .with_raw(|raw| launch(clusters * boxes.blocks(), raw))
            }
        }
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_infinities(&self) -> bool {
        self.size.infinite
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let at = self.place(&machine)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let report = self.launch(&at, |blocks, raw| {
            let config = LaunchConfig {
                grid: [blocks, 1, 1],
                block: kernel.reqntid.unwrap_or([1; 3]),
                dynamic_shared: shared_bytes,
                beside_last: self.instance.is_joined,
                ..LaunchConfig::default()
            };
            // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
            let bytes: Vec<&[u8]> =
                raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
            machine.launch(module, &kernel.name, &config, &bytes)
        })?;
        let read = |address: u64, length: usize| -> Result<Vec<u8>, LaunchError> {
            let mut bytes = vec![0; length];
            if length > 0 {
                machine.read(address, &mut bytes)?;
            }
            Ok(bytes)
        };
        let right = self.is_right(&read(at.y, self.y.expected.len())?)
            && read(at.mask, self.mask.expected.len())? == self.mask.expected
            && read(at.preactivation, self.preactivation.expected.len())? == self.preactivation.expected;
        Ok((report, right))
    }
}
