//! `ldmatrix`, `stmatrix` and `mma`: operations in which the whole warp holds a matrix.

use super::access::{WINDOW, ones};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Execute, Lane, handler, warp};
use crate::check::granules::Rows;
use crate::check::shadow::Access;
use crate::config::Numerics;
use crate::ir::op::{Mma, Op};
use crate::ir::types::Ty;
use crate::numeric::mma::{self, Fragments, Model};
use crate::syntax::ast::Space;

/// The handler of `ldmatrix`.
pub(crate) fn load(count: u8, _: bool, level: Level) -> Handler {
    match count {
        1 => handler::<LoadMatrix<1>>(level),
        2 => handler::<LoadMatrix<2>>(level),
        _ => handler::<LoadMatrix<4>>(level),
    }
}

impl Core<'_> {
    /// Generic addresses become those of the block's shared memory. A GPU takes an address that is one of shared memory already, too: it
    /// looks at the lower half only.
    fn in_own_shared(&mut self, lanes: u32, addresses: &mut [u64; 32], what: &str) -> Result<(), Flow> {
        for lane in ones(lanes) {
            let address = match addresses[lane] {
                shared @ 0..WINDOW => shared,
                generic => self.shared_address(generic, lane, what)?,
            };
            // That of another block lies outside, and is found there.
            addresses[lane] = self.own_shared(address).map_or(address, u64::from);
        }
        Ok(())
    }
}

struct LoadMatrix<const N: usize>;

impl<const N: usize> Execute for LoadMatrix<N> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        load_matrices::<N>(core, inst).err().unwrap_or(Flow::Next)
    }
}

#[inline(always)]
fn load_matrices<const N: usize>(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::LoadMatrix { transpose, space, .. } = inst.op else { return Ok(()) };
    core.whole_warp("ldmatrix")?;
    // Only the first 8 lanes for each matrix give addresses.
    let lanes = if N == 4 { u32::MAX } else { (1 << (8 * N)) - 1 };
    core.warp.mask = lanes;
    let mut addresses = core.addresses(inst.slots[N], inst.immediates[0])?;
    if space == Space::Generic {
        core.in_own_shared(lanes, &mut addresses, "ldmatrix")?;
    }
    core.check_alignment(lanes, &addresses, 16, "ldmatrix")?;
    let rows = core.check_shared(lanes, &addresses, 16, "ldmatrix")?;
    // With the alignment check off, a row may begin anywhere.
    let whole = core.launch.checks.alignment.then(|| Rows::new(rows, |lane| addresses[lane] as u32));
    match &whole {
        Some(whole) => core.race_rows(rows, &addresses, whole, Access::Read)?,
        None => core.race(rows, &addresses, 16, Access::Read)?,
    }
    if let Some(race) = core.warp.lanes.together(rows, &addresses, 16, whole.as_ref()) {
        return Err(core.raced_lane(race, "read"));
    }
    if core.launch.kernel.fills && core.launch.checks.races {
        core.warp.lanes.read_together(core.warp.live, rows, &addresses, core.warp.pc);
    }
    let mut values = [[0u32; 32]; N];
    // Row i of the matrices stands in lanes 4·(i mod 8) to 4·(i mod 8) + 3 of register i / 8: all rows in a row.
    let words = values.as_flattened_mut().as_chunks_mut::<4>().0;
    let mut all = 0xffff;
    for (lane, words) in words.iter_mut().enumerate() {
        // Rows outside shared memory are left out, if bounds are not checked.
        if rows >> lane & 1 == 1 {
            let (row, written) = core.block.shared.load_block(addresses[lane] as usize);
            for (word, bytes) in words.iter_mut().zip(row.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            all &= written;
        }
    }
    let mut bits = [0xffff; 32];
    if all != 0xffff {
        for lane in (0..8 * N).filter(|lane| rows >> lane & 1 == 1) {
            bits[lane] = core.block.shared.load_block(addresses[lane] as usize).1;
        }
    }
    core.warp.mask = u32::MAX;
    for n in 0..N {
        let mut written = u32::MAX;
        if all != 0xffff {
            written = 0;
            for lane in 0..32 {
                let (g, t) = (lane / 4, lane % 4);
                let known = if transpose {
                    let column = 3 << (2 * g);
                    bits[8 * n + 2 * t] & column == column && bits[8 * n + 2 * t + 1] & column == column
                } else {
                    bits[8 * n + g] >> (4 * t) & 0xf == 0xf
                };
                written |= u32::from(known) << lane;
            }
        }
        let value = if transpose { transposed(&values[n]) } else { values[n] };
        u32::write(core, inst.slots[n], &value, written);
    }
    Ok(())
}

/// The 8×8 matrix of halves that a register holds, transposed.
#[inline(always)]
fn transposed(matrix: &[u32; 32]) -> [u32; 32] {
    let half = |row: usize, column: usize| matrix[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        half(2 * t, g) | half(2 * t + 1, g) << 16
    })
}

/// The handler of `stmatrix`.
pub(crate) fn store(level: Level) -> Handler {
    warp!(level, |core, inst| { store_matrices(core, inst).err().unwrap_or(Flow::Next) })
}

#[inline(always)]
fn store_matrices(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::StoreMatrix { count, transpose, space } = inst.op else { return Ok(()) };
    core.whole_warp("stmatrix")?;
    // Only the first 8 lanes for each matrix give addresses.
    let lanes = u32::MAX >> (32 - 8 * u32::from(count));
    core.warp.mask = lanes;
    let mut addresses = core.addresses(inst.slots[0], inst.immediates[0])?;
    if space == Space::Generic {
        core.in_own_shared(lanes, &mut addresses, "stmatrix")?;
    }
    core.check_alignment(lanes, &addresses, 16, "stmatrix")?;
    let rows = core.check_shared(lanes, &addresses, 16, "stmatrix")?;
    core.race_lanes(rows, &addresses, 16, true)?;
    core.race(rows, &addresses, 16, Access::Write)?;
    core.warp.mask = u32::MAX;
    for n in 0..usize::from(count) {
        let slot = inst.slots[1 + n];
        let (matrix, known) = (*u32::read(core, slot), u32::written(core, slot));
        // Which halves of each lane are known; a lane knows both or none.
        let matrix = if transpose { transposed(&matrix) } else { matrix };
        for row in (0..8).filter(|row| rows >> (8 * n + row) & 1 == 1) {
            let mut data = [0; 16];
            for (bytes, word) in data.as_chunks_mut::<4>().0.iter_mut().zip(&matrix[4 * row..]) {
                *bytes = word.to_le_bytes();
            }
            let at = addresses[8 * n + row] as usize;
            core.block.shared.store_block(at, data);
            if known != u32::MAX {
                for column in 0..8 {
                    let lane = if transpose { 4 * column + row / 2 } else { 4 * row + column / 2 };
                    core.block.shared.set_written(at + 2 * column, 2, known >> lane & 1 == 1);
                }
            }
        }
    }
    Ok(())
}

/// How many registers hold A.
#[inline(always)]
fn registers_a(shape: Mma) -> usize {
    // A row has 16 bytes in two registers.
    usize::from(shape.k) * shape.a.bytes() as usize / 8
}

/// The handler of `mma`.
pub(crate) fn mma(_: Mma, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Mma(shape) = inst.op else { return Flow::Next };
        if let Err(flow) = core.whole_warp("mma") {
            return flow;
        }
        let registers_a = registers_a(shape);
        let registers_b = registers_a / 2;
        let results = if shape.accumulator == Ty::F16 { 2 } else { 4 };
        let (first_a, first_b) = (results, results + registers_a);
        let first_c = first_b + registers_b;
        let mut fragments = Fragments { a: [&[0; 32]; 4], b: [&[0; 32]; 2], c: [&[0; 32]; 4] };
        let mut known = u32::MAX;
        for i in 0..registers_a {
            fragments.a[i] = u32::read(core, inst.slots[first_a + i]);
            known &= u32::written(core, inst.slots[first_a + i]);
        }
        for i in 0..registers_b {
            fragments.b[i] = u32::read(core, inst.slots[first_b + i]);
            known &= u32::written(core, inst.slots[first_b + i]);
        }
        for i in 0..results {
            fragments.c[i] = u32::read(core, inst.slots[first_c + i]);
            known &= u32::written(core, inst.slots[first_c + i]);
        }
        let mut out = [[0u32; 32]; 4];
        let model = match core.launch.numerics {
            Numerics::Fast => None,
            Numerics::Exact if core.launch.hopper => Some(Model::Hopper),
            Numerics::Exact => Some(Model::Ampere),
        };
        mma::product(&fragments, shape, model, core.launch.level, &mut out);
        let written = if known == u32::MAX { [u32::MAX; 4] } else { written_results(core, inst, shape) };
        for i in 0..results {
            u32::write(core, inst.slots[i], &out[i], written[i]);
        }
        Flow::Next
    })
}

/// Which results depend only on values that were written: those whose row of A, column of B and own C were.
#[cold]
fn written_results(core: &Core<'_>, inst: &Inst, shape: Mma) -> [u32; 4] {
    let results = if shape.accumulator == Ty::F16 { 2 } else { 4 };
    let registers_a = registers_a(shape);
    let known = |from: usize, count: usize, step: usize| {
        (from..from + count).step_by(step).fold(u32::MAX, |all, i| all & u32::written(core, inst.slots[i]))
    };
    // A's even registers hold rows 0 to 7, its odd ones rows 8 to 15.
    let rows = [known(results, registers_a, 2), known(results + 1, registers_a - 1, 2)];
    let columns = known(results + registers_a, registers_a / 2, 1);
    let mut written = [0; 4];
    for (i, written) in written.iter_mut().enumerate().take(results) {
        let own = u32::written(core, inst.slots[results + registers_a * 3 / 2 + i]);
        let upper = if results == 2 { i } else { i / 2 };
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            let row = rows[upper] >> (4 * g) & 0xf == 0xf;
            let column = |n: u32| columns >> (4 * n) & 0xf == 0xf;
            let both = results == 2;
            let columns =
                if both { column(2 * t) && column(2 * t + 1) } else { column(2 * t + i as u32 % 2) };
            *written |= u32::from(row && columns) << lane;
        }
        *written &= own;
    }
    written
}
