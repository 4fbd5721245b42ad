//! How the kernel of the family `expert_cache` is run: on rows of every number of chunks around what a warp copies at a time, more and fewer of
//! them than there are warps, and the same for what changes in the map.

use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::expert_cache::FillParams;

use super::Problem;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    if name != "fill_slots" {
        return None;
    }
    let case = |chunks, loads, changes, blocks| Case { chunks, loads, changes, blocks };
    let all = [
        case(1, 1, 1, 1),
        case(1, 3, 0, 1),
        case(5, 0, 7, 1),
        case(32, 9, 300, 1),
        case(33, 19, 255, 2),
        case(64, 4, 256, 1),
        case(255, 3, 257, 1),
        case(256, 2, 520, 2),
        case(257, 17, 1, 2),
        case(300, 9, 1, 1),
        case(520, 2, 1100, 2),
        case(2, 40, 30, 2),
        // Rows that end in each of the eight parts that a warp has under way.
        case(70, 2, 3, 1),
        case(100, 2, 3, 1),
        case(130, 2, 3, 1),
        case(165, 2, 3, 1),
        case(200, 2, 3, 1),
        case(230, 2, 3, 1),
    ];
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

struct Case {
    /// Chunks of a row.
    chunks: u32,
    loads: u32,
    changes: u32,
    blocks: u32,
}

impl Case {
    /// Slots and rows that are not copied, and entries that do not change.
    const OTHERS: u32 = 3;

    fn row_bytes(&self) -> usize {
        self.chunks as usize * 16
    }

    fn rows(&self) -> u32 {
        self.loads.max(self.changes) + Self::OTHERS
    }

    fn slots(&self) -> u32 {
        self.loads + Self::OTHERS
    }

    /// The `index`-th of `count` numbers in an order that begins with the last of them, which ends where the memory does.
    fn scattered(index: u32, count: u32) -> u32 {
        let step = [7, 11, 13, 17, 19].into_iter().find(|step| !count.is_multiple_of(*step)).unwrap_or(1);
        count - 1 - index * step % count
    }

    fn loads(&self) -> Vec<[u32; 2]> {
        let pair = |index| [Self::scattered(index, self.rows()), Self::scattered(index, self.slots())];
        (0..self.loads).map(pair).collect()
    }

    fn changes(&self) -> Vec<[u32; 2]> {
        (0..self.changes).map(|index| [Self::scattered(index, self.rows()), 1000 + index]).collect()
    }

    fn host(&self) -> Vec<u8> {
        (0..self.rows() as usize * self.row_bytes()).map(|i| (i * 7 + i / 256 * 31) as u8).collect()
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        "rows to slots"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let (row_bytes, host) = (self.row_bytes(), self.host());
        let (loads, changes) = (self.loads(), self.changes());
        let mut slots = vec![0xaa; self.slots() as usize * row_bytes];
        let mut slot_of = vec![0xbb; self.rows() as usize * 4];
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let address = machine.allocate(bytes.len() as u64)?;
            machine.write(address, bytes)?;
            Ok(address)
        };
        let pairs = |pairs: &[[u32; 2]]| -> Vec<u8> {
            pairs.iter().flatten().flat_map(|number| number.to_le_bytes()).collect()
        };
        let (host_at, slots_at, map_at) = (place(&host)?, place(&slots)?, place(&slot_of)?);
        let (loads_at, changes_at) = (place(&pairs(&loads))?, place(&pairs(&changes))?);
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [self.blocks, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let launch = |raw: &[RawArg]| {
            // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
            let bytes: Vec<&[u8]> =
                raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
            machine.launch(module, &kernel.name, &config, &bytes)
        };
        let params =
            FillParams { row_bytes: row_bytes as u32, loads: self.loads, changes: self.changes, reserved: 0 };
        let arguments = (
            Global::<u8>::new(host_at),
            GlobalMut::<u8>::new(slots_at),
            GlobalMut::<u32>::new(map_at),
            Global::<u32>::new(loads_at),
            Global::<u32>::new(changes_at),
            params,
        );
        let report = arguments.with_raw(launch)?;
        for [row, slot] in loads {
            let (row, slot) = (row as usize * row_bytes, slot as usize * row_bytes);
            slots[slot..slot + row_bytes].copy_from_slice(&host[row..row + row_bytes]);
        }
        for [row, slot] in changes {
            slot_of[row as usize * 4..][..4].copy_from_slice(&slot.to_le_bytes());
        }
        let (mut got_slots, mut got_map) = (vec![0; slots.len()], vec![0; slot_of.len()]);
        machine.read(slots_at, &mut got_slots)?;
        machine.read(map_at, &mut got_map)?;
        Ok((report, got_slots == slots && got_map == slot_of))
    }
}
