//! `cp.async.bulk.tensor` and its kin: boxes of tensors that the copy engine moves as a tensor map says.

use super::access::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW, ones};
use super::agent::{Piece, Place, Signal, Transfer};
use super::bulk::{Route, Targets, Use};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use crate::check::FindingKind;
use crate::check::shadow::Access;
use crate::ir::op::{Atomic, Destination, Op, TensorCopy};
use crate::ir::types::Ty;
use crate::syntax::ast::Space;
use crate::tensor::{BoxPiece, MAP_BYTES, TensorType, Tiled};

/// What the address of a tile in shared memory is a multiple of.
const TILE_ALIGNMENT: u32 = 128;
/// What the address of a tensor map is a multiple of.
const MAP_ALIGNMENT: u32 = 64;

/// The handler of copies, reductions and prefetches of boxes.
pub(crate) fn copy(level: Level) -> Handler {
    warp!(level, |core, inst| { begin(core, inst).err().unwrap_or(Flow::Next) })
}

/// The handler of `prefetch.tensormap`.
pub(crate) fn prefetch(level: Level) -> Handler {
    warp!(level, |core, inst| { look(core, inst).err().unwrap_or(Flow::Next) })
}

fn look(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::PrefetchMap(space) = inst.op else { return Ok(()) };
    let mut maps = core.addresses(inst.slots[0], inst.immediates[0])?;
    if space == Space::Param {
        maps = maps.map(|address| address.wrapping_add(PARAM_WINDOW));
    }
    core.check_alignment(core.warp.mask, &maps, MAP_ALIGNMENT, "prefetch of a tensor map")?;
    for lane in ones(core.warp.mask) {
        core.tensor_map(lane, maps[lane], "a prefetch")?;
    }
    Ok(())
}

fn begin(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::TensorCopy { what, axes } = inst.op else { return Ok(()) };
    let mask = core.warp.mask;
    let name = match what {
        TensorCopy::Load(_) => "a tensor load",
        TensorCopy::Store => "a tensor store",
        TensorCopy::Reduce(_) => "a tensor reduction",
        TensorCopy::Prefetch => "a tensor prefetch",
    };
    // A load names its destination first.
    let at = usize::from(matches!(what, TensorCopy::Load(_)));
    let behind = at + 1 + usize::from(axes);
    let maps = core.addresses(inst.slots[at], inst.immediates[at])?;
    core.check_alignment(mask, &maps, MAP_ALIGNMENT, "tensor map")?;
    let starts = coordinates(core, inst, at + 1, usize::from(axes))?;
    let tiles = match what {
        TensorCopy::Load(_) => core.addresses(inst.slots[0], inst.immediates[0])?,
        TensorCopy::Store | TensorCopy::Reduce(_) => {
            core.addresses(inst.slots[behind], inst.immediates[1])?
        }
        TensorCopy::Prefetch => [0; 32],
    };
    core.check_alignment(mask, &tiles, TILE_ALIGNMENT, name)?;
    let barriers = match what {
        TensorCopy::Load(_) => core.barrier_addresses(inst.slots[behind], inst.immediates[2])?,
        _ => [0; 32],
    };
    let ranks = match what {
        TensorCopy::Load(Destination::Several) => core.masks(inst.slots[behind + 1])?,
        _ => [0; 32],
    };
    for lane in ones(mask) {
        let map = core.tensor_map(lane, maps[lane], name)?;
        if map.rank != usize::from(axes) {
            let message = format!("{name} of {axes} axes with a tensor map of {}", map.rank);
            return Err(core.fail(FindingKind::TensorMap, 1 << lane, message, None));
        }
        let start = starts[lane];
        let first = i64::from(start[0]) * i64::from(map.data_type.bytes());
        if first % 16 != 0 && !matches!(what, TensorCopy::Prefetch) && core.launch.checks.alignment {
            let message = format!(
                "{name} whose box begins {first} bytes into the innermost axis, which is not a multiple of 16"
            );
            let hint = "the first coordinate times the size of an element must be a multiple of 16 bytes";
            return Err(core.fail(FindingKind::Misaligned, 1 << lane, message, Some(hint)));
        }
        match what {
            TensorCopy::Load(destination) => {
                let route =
                    Route { destination, to: tiles[lane], barrier: barriers[lane], ranks: ranks[lane] };
                let targets = core.targets(lane, route, map.shared_bytes(), name)?;
                load(core, lane, &map, &start, targets, name)?;
            }
            TensorCopy::Store => store(core, lane, &map, &start, tiles[lane], None, name)?,
            TensorCopy::Reduce(op) => store(core, lane, &map, &start, tiles[lane], Some(op), name)?,
            TensorCopy::Prefetch => {}
        }
    }
    Ok(())
}

/// The coordinates of each lane's box.
fn coordinates(
    core: &mut Core<'_>,
    inst: &Inst,
    first: usize,
    axes: usize,
) -> Result<Box<[[i32; 5]; 32]>, Flow> {
    let mut starts = Box::new([[0; 5]; 32]);
    for (axis, &slot) in inst.slots[first..first + axes].iter().enumerate() {
        let missing = core.warp.mask & !u32::written(core, slot);
        if missing != 0 && core.launch.checks.uninitialised {
            return Err(core.uninitialised(missing, "a coordinate of a box"));
        }
        for (start, &value) in starts.iter_mut().zip(u32::read(core, slot)) {
            start[axis] = value.cast_signed();
        }
    }
    Ok(starts)
}

fn load(
    core: &mut Core<'_>,
    lane: usize,
    map: &Tiled,
    start: &[i32; 5],
    targets: Targets,
    what: &'static str,
) -> Result<(), Flow> {
    let Targets { places, signals } = targets;
    let rounds = matches!(map.data_type, TensorType::Tf32 | TensorType::Tf32Ftz);
    let mut pieces = Vec::new();
    if let Some(&(_, tile)) = places.first() {
        let mut failed = None;
        map.pieces(start, tile, |piece| {
            if failed.is_some() {
                return;
            }
            let source = match piece.global {
                Some(address) => core.global_place(lane, address, piece.bytes, Use::Read, what),
                None => Ok(None),
            };
            match source {
                Ok(source) => {
                    let bytes = piece.bytes;
                    let to = Place::Shared { rank: places[0].0, offset: piece.shared };
                    pieces.push(match source {
                        Some(from) if rounds => Piece::LoadRounded { from, to, bytes },
                        Some(from) => Piece::Load { from, to, bytes },
                        None => {
                            let pattern = if piece.global.is_none() { map.fill() } else { 0 };
                            Piece::Fill { to, bytes, pattern }
                        }
                    });
                }
                Err(flow) => failed = Some(flow),
            }
        });
        if let Some(flow) = failed {
            return Err(core.at_box(flow, map, start));
        }
    }
    let one = pieces.len();
    for &(rank, _) in places.iter().skip(1) {
        pieces.extend_from_within(..one);
        pieces.iter_mut().rev().take(one).for_each(|piece| piece.send_to(rank));
    }
    // The barrier counts the whole box, whatever of it lies outside the tensor.
    core.start(lane, Transfer { what, pieces, signals, bytes: map.box_bytes() as u32, clock: None })
}

fn store(
    core: &mut Core<'_>,
    lane: usize,
    map: &Tiled,
    start: &[i32; 5],
    tile: u64,
    reduction: Option<Atomic>,
    what: &'static str,
) -> Result<(), Flow> {
    if let Some(axis) = map.negative_axis(start)
        && core.launch.checks.bounds
    {
        let message = format!(
            "{what} begins at {:?}: expected no negative coordinate, as for axis {axis}",
            &start[..map.rank]
        );
        let hint = "only a load may begin outside the tensor";
        return Err(core.fail(FindingKind::OutOfBounds, 1 << lane, message, Some(hint)));
    }
    let reduction = match reduction {
        None => None,
        Some(op) => match element(op, map.data_type) {
            Some(ty) => Some((op, ty)),
            None => {
                let message =
                    format!("{what}: there is no `{op:?}` for elements of type {:?}", map.data_type);
                return Err(core.fail(FindingKind::TensorMap, 1 << lane, message, None));
            }
        },
    };
    let flush = map.data_type == TensorType::F32Ftz;
    let mut pieces = Vec::new();
    let mut failed = None;
    if let Some(Place::Shared { rank, offset }) = core.own_range(lane, tile, map.shared_bytes(), what)? {
        let mut take = |piece: BoxPiece| {
            let Some(address) = piece.global.filter(|_| failed.is_none()) else { return };
            match core.global_place(lane, address, piece.bytes, Use::Write, what) {
                Ok(None) => {}
                Ok(Some(to)) => {
                    let (from, bytes) = (Place::Shared { rank, offset: piece.shared }, piece.bytes);
                    pieces.push(match reduction {
                        Some((op, ty)) => Piece::Reduce { op, ty, flush, from, to, bytes },
                        None => Piece::Load { from, to, bytes },
                    });
                }
                Err(flow) => failed = Some(flow),
            }
        };
        if reduction.is_some() {
            map.pieces(start, offset, &mut take);
        } else {
            map.stored_pieces(start, offset, &mut take);
        }
    }
    if let Some(flow) = failed {
        return Err(core.at_box(flow, map, start));
    }
    core.start(
        lane,
        Transfer { what, pieces, signals: vec![Signal::Group], bytes: map.box_bytes() as u32, clock: None },
    )
}

/// The type that a reduction works in; `None` where there is none for these elements.
fn element(op: Atomic, data_type: TensorType) -> Option<Ty> {
    let ty = match data_type {
        TensorType::U32 => Ty::U32,
        TensorType::S32 => Ty::S32,
        TensorType::U64 => Ty::U64,
        TensorType::S64 => Ty::S64,
        TensorType::F16 => Ty::F16,
        TensorType::Bf16 => Ty::Bf16,
        TensorType::F32 | TensorType::F32Ftz => Ty::F32,
        _ => return None,
    };
    let known = match op {
        Atomic::Add => ty != Ty::S64,
        Atomic::Min | Atomic::Max => ty != Ty::F32,
        Atomic::Inc | Atomic::Dec => ty == Ty::U32,
        Atomic::And | Atomic::Or | Atomic::Xor => !ty.is_float(),
        Atomic::Exchange | Atomic::CompareExchange => false,
    };
    known.then_some(ty)
}

impl Core<'_> {
    /// The tensor map at a generic address.
    fn tensor_map(&mut self, lane: usize, address: u64, what: &str) -> Result<Tiled, Flow> {
        let mut bytes = [0; MAP_BYTES];
        let within = |window: u64| address.wrapping_sub(window) < WINDOW;
        let place = if within(SHARED_WINDOW) || within(LOCAL_WINDOW) {
            let space = if within(SHARED_WINDOW) { "shared" } else { "local" };
            format!("address {address:#x}, which is in {space} memory,")
        } else if within(PARAM_WINDOW) {
            let offset = (address - PARAM_WINDOW) as usize;
            if let Some(parameters) = self.launch.parameters.get(offset..).and_then(|p| p.first_chunk()) {
                bytes = *parameters;
            }
            format!("byte {offset} of the parameters")
        } else {
            let found =
                self.allocation(address, 1 << lane, &[address; 32], MAP_BYTES as u32, "a tensor map")?;
            let table = self.launch.table;
            if let Some(index) = found {
                let offset = address - table.at(index).base;
                table.at(index).storage.read(offset, &mut bytes);
                let noted = self.note_global_range(lane, index, offset, MAP_BYTES as u32, Access::Read);
                if let (Err(_), Some(fault)) = (noted, &mut self.fault) {
                    let hint = "whoever writes a map needs `fence.proxy.tensormap::generic.release` behind it, whoever \
                                uses it the `.acquire` before, and an order between the two";
                    fault.hint = Some(hint.to_owned());
                }
                noted?;
            }
            table.describe(address)
        };
        if let Some(map) = Tiled::decode(&bytes) {
            return Ok(map);
        }
        let message =
            format!("{what} with the {MAP_BYTES} bytes at {place} for a tensor map, which they are not");
        let hint = "the host makes tensor maps; a kernel gets one by value and takes the address of the parameter \
                    (`cvta.param`), or the address of a copy in global or constant memory";
        Err(self.fail(FindingKind::TensorMap, 1 << lane, message, Some(hint)))
    }

    /// Adds to a finding which box it was.
    fn at_box(&mut self, flow: Flow, map: &Tiled, start: &[i32; 5]) -> Flow {
        if let Some(fault) = &mut self.fault {
            let (start, counts, dims) = (&start[..map.rank], &map.counts[..map.rank], &map.dims[..map.rank]);
            fault.message += &format!(
                " (the box of {counts:?} elements at {start:?} of a tensor of {dims:?}, innermost axis first)"
            );
        }
        flow
    }
}
