//! How the kernels of the family `expert_cache` are run. Copies of rows of every number of chunks around what a warp copies at
//! a time, more and fewer of them than there are warps and than a warp takes at a time. Notes of ids of which many are the same
//! and some are no rows. Notes that are settled.

use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::expert_cache::{
    FillParams, HEADER, HITS, LOAD_WORDS, NONE, NoteParams, STRAY, SettleParams,
};

use super::Problem;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    match name {
        "fill_slots" => Some(fills()),
        "note_rows" => Some(notes()),
        "settle_notes" => Some(settlements()),
        _ => None,
    }
}

fn boxed<P: Problem + 'static>(all: impl IntoIterator<Item = P>) -> Vec<Box<dyn Problem>> {
    all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect()
}

fn fills() -> Vec<Box<dyn Problem>> {
    let case = |chunks, loads, batch, blocks| Fill { chunks, loads, batch, blocks };
    boxed([
        case(1, 1, 1, 1),
        case(1, 3, 2, 1),
        case(5, 0, 7, 1),
        case(32, 9, 1, 1),
        case(33, 19, 2, 2),
        case(64, 4, 32, 1),
        case(255, 3, 1, 1),
        case(256, 2, 3, 2),
        case(257, 17, 1, 2),
        case(300, 9, 2, 1),
        case(520, 2, 1, 2),
        case(2, 40, 1, 2),
        case(1, 300, 32, 1),
        // The map alone.
        case(0, 300, 32, 1),
        case(0, 70, 3, 2),
        // Rows that end in each of the eight parts that a warp has under way.
        case(70, 2, 1, 1),
        case(100, 2, 1, 1),
        case(130, 2, 1, 1),
        case(165, 2, 1, 1),
        case(200, 2, 1, 1),
        case(230, 2, 1, 1),
    ])
}

fn notes() -> Vec<Box<dyn Problem>> {
    let case = |rows, ids, noted, strays, blocks| Note { rows, ids, noted, strays, blocks };
    boxed([
        case(1, 1, 1, &[], 1),
        case(33, 0, 0, &[], 1),
        case(40, 31, 31, &[], 1),
        case(64, 33, 32, &[], 1),
        case(100, 257, 257, &[], 1),
        case(100, 300, 7, &[299], 1),
        case(1000, 600, 600, &[300, 33, 599], 2),
        case(3000, 1200, 1000, &[0], 2),
        case(5, 700, 650, &[640, 655], 1),
        case(0, 3, 3, &[], 1),
    ])
}

fn settlements() -> Vec<Box<dyn Problem>> {
    let case = |words, blocks| Settle { words, blocks };
    boxed([case(0, 1), case(1, 1), case(3, 1), case(255, 1), case(257, 1), case(600, 2), case(513, 1)])
}

/// Runs the only entry of a module.
fn launch(
    machine: &Machine,
    module: &Module,
    blocks: u32,
    shared_bytes: u32,
    arguments: &impl KernelArgs,
) -> Result<Report, LaunchError> {
    let Some(kernel) = module.kernels().next() else { return Ok(Report::default()) };
    let config = LaunchConfig {
        grid: [blocks, 1, 1],
        block: kernel.reqntid.unwrap_or([1; 3]),
        dynamic_shared: shared_bytes,
        ..LaunchConfig::default()
    };
    super::launch(machine, module, &kernel.name, &config, *arguments)
}

fn place(machine: &Machine, bytes: &[u8]) -> Result<u64, LaunchError> {
    let address = machine.allocate(bytes.len() as u64)?;
    machine.write(address, bytes)?;
    Ok(address)
}

fn place_words(machine: &Machine, words: &[u32]) -> Result<u64, LaunchError> {
    place(machine, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

fn has_words(machine: &Machine, address: u64, expected: &[u32]) -> Result<bool, LaunchError> {
    let mut bytes = vec![0; expected.len() * 4];
    machine.read(address, &mut bytes)?;
    let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()));
    Ok(words.eq(expected.iter().copied()))
}

struct Fill {
    /// Chunks of a row; 0 for the map alone.
    chunks: u32,
    loads: u32,
    batch: u32,
    blocks: u32,
}

impl Fill {
    /// Slots and rows that are not copied, and entries that do not change.
    const OTHERS: u32 = 3;

    fn row_bytes(&self) -> usize {
        self.chunks as usize * 16
    }

    fn slots(&self) -> u32 {
        self.loads + Self::OTHERS
    }

    /// Half of them lose their slots.
    fn rows(&self) -> u32 {
        2 * self.loads + Self::OTHERS
    }

    /// The `index`-th of `count` numbers in an order that begins with the last of them, which ends where the memory does.
    fn scattered(index: u32, count: u32) -> u32 {
        let step = [7, 11, 13, 17, 19].into_iter().find(|step| !count.is_multiple_of(*step)).unwrap_or(1);
        count - 1 - index * step % count
    }

    /// Row, slot, and a row that loses it; every third slot was empty.
    fn loads(&self) -> Vec<[u32; LOAD_WORDS as usize]> {
        let load = |index| {
            let evicted = Self::scattered(self.loads + index, self.rows());
            let evicted = if index % 3 == 1 { NONE } else { evicted };
            [Self::scattered(index, self.rows()), Self::scattered(index, self.slots()), evicted]
        };
        (0..self.loads).map(load).collect()
    }
}

impl Problem for Fill {
    fn name(&self) -> &str {
        "rows to slots"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let (row_bytes, loads) = (self.row_bytes(), self.loads());
        let host: Vec<u8> =
            (0..self.rows() as usize * row_bytes).map(|i| (i * 7 + i / 256 * 31) as u8).collect();
        let mut slots = vec![0xaa; self.slots() as usize * row_bytes];
        let mut slot_of = vec![0xbbbb; self.rows() as usize];
        let (host_at, slots_at) = (place(&machine, &host)?, place(&machine, &slots)?);
        let (map_at, loads_at) =
            (place_words(&machine, &slot_of)?, place_words(&machine, loads.as_flattened())?);
        let params =
            FillParams { row_bytes: row_bytes as u32, loads: self.loads, batch: self.batch, reserved: 0 };
        let arguments = (
            Global::<u8>::new(host_at),
            GlobalMut::<u8>::new(slots_at),
            GlobalMut::<u32>::new(map_at),
            Global::<u32>::new(loads_at),
            params,
        );
        let report = launch(&machine, module, self.blocks, shared_bytes, &arguments)?;
        for [row, slot, evicted] in loads {
            slot_of[row as usize] = slot;
            if evicted != NONE {
                slot_of[evicted as usize] = NONE;
            }
            let (row, slot) = (row as usize * row_bytes, slot as usize * row_bytes);
            slots[slot..slot + row_bytes].copy_from_slice(&host[row..row + row_bytes]);
        }
        let mut got_slots = vec![0; slots.len()];
        machine.read(slots_at, &mut got_slots)?;
        Ok((report, got_slots == slots && has_words(&machine, map_at, &slot_of)?))
    }
}

struct Note {
    rows: u32,
    ids: u32,
    noted: u32,
    /// Where ids are no rows. Without rows none is.
    strays: &'static [u32],
    blocks: u32,
}

impl Note {
    fn ids(&self) -> Vec<u32> {
        let row = |index: u32| {
            // Small ones are more frequent, and so are neighbours in a warp the same.
            let spread = index.wrapping_mul(2_654_435_761) >> 8;
            let below = if index.is_multiple_of(3) { self.rows } else { self.rows.min(40) };
            spread.checked_rem(below).unwrap_or(0)
        };
        let mut ids: Vec<u32> = (0..self.ids).map(row).collect();
        let strays = (0u32..).zip(self.strays);
        strays.for_each(|(number, &index)| ids[index as usize] = self.rows + 977 * number);
        // The last row is one.
        if self.noted > 1 && self.rows > 0 && !self.strays.contains(&1) {
            ids[1] = self.rows - 1;
        }
        ids
    }
}

impl Problem for Note {
    fn name(&self) -> &str {
        "noted rows"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let (ids, words) = (self.ids(), self.rows.div_ceil(32));
        let resident: Vec<u32> = (0..words).map(|word| 0x9e37_79b9u32.rotate_left(word * 5)).collect();
        let mut notes = vec![0; (HEADER + words) as usize];
        let (ids_at, resident_at) = (place_words(&machine, &ids)?, place_words(&machine, &resident)?);
        let notes_at = place_words(&machine, &notes)?;
        let params = NoteParams { ids: self.ids, noted: self.noted, rows: self.rows, reserved: 0 };
        let arguments = (
            Global::<u32>::new(ids_at),
            Global::<u32>::new(resident_at),
            GlobalMut::<u32>::new(notes_at),
            params,
        );
        let report = launch(&machine, module, self.blocks, shared_bytes, &arguments)?;
        for (index, &id) in (0u32..).zip(&ids) {
            if id >= self.rows {
                notes[STRAY as usize] = notes[STRAY as usize].max(NONE - index);
            } else if index < self.noted {
                let (word, bit) = ((id / 32) as usize, id % 32);
                notes[HEADER as usize + word] |= 1 << bit;
                notes[HITS as usize] += resident[word] >> bit & 1;
            }
        }
        Ok((report, has_words(&machine, notes_at, &notes)?))
    }
}

struct Settle {
    words: u32,
    blocks: u32,
}

impl Problem for Settle {
    fn name(&self) -> &str {
        "settled notes"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        // Some without any bit, some with all, and what is behind them stays.
        let word = |index: u32| match index % 5 {
            1 => 0,
            2 => u32::MAX,
            3 => 1 << 31,
            _ => index.wrapping_mul(2_654_435_761),
        };
        let mut notes: Vec<u32> = (0..HEADER).map(|index| 7 + index).collect();
        notes.extend((0..self.words).map(word));
        notes.push(5);
        let mut heat: Vec<u32> =
            (0..32 * self.words).map(|row| if row % 7 == 3 { u32::MAX } else { row }).collect();
        let (notes_at, heat_at) = (place_words(&machine, &notes)?, place_words(&machine, &heat)?);
        let params = SettleParams { words: self.words, reserved: 0 };
        let arguments = (GlobalMut::<u32>::new(notes_at), GlobalMut::<u32>::new(heat_at), params);
        let report = launch(&machine, module, self.blocks, shared_bytes, &arguments)?;
        for (row, heat) in (0u32..).zip(&mut heat) {
            let is_noted = notes[(HEADER + row / 32) as usize] >> (row % 32) & 1 != 0;
            *heat = heat.saturating_add(u32::from(is_noted));
        }
        notes[..(HEADER + self.words) as usize].fill(0);
        Ok((report, has_words(&machine, notes_at, &notes)? && has_words(&machine, heat_at, &heat)?))
    }
}
