//! What launchers say in the environment.

use std::net::Ipv6Addr;

use super::{Launch, Meeting};
use crate::error::{Error, Result};

/// The variables of a launcher: rank, size, rank on the host.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];
/// The port if none is given.
const PORT: u16 = 29_500;

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn launch(variable: Variable<'_>) -> Result<Launch> {
    let Some([rank_name, size_name, local_name]) =
        LAUNCHERS.into_iter().find(|[rank, _, _]| variable(rank).is_some())
    else {
        let names: Vec<_> = LAUNCHERS.iter().map(|[rank, ..]| *rank).collect();
        return Err(Error::Environment {
            variable: names.join(" or "),
            expected: "set by a launcher, as `torchrun`, `srun`, `mpirun` or `cargo xtask spawn`".into(),
            actual: "not set".into(),
        });
    };
    let (rank, size) = (number::<usize>(variable, rank_name)?, number::<usize>(variable, size_name)?);
    if rank >= size {
        let expected = format!("below {size}, which {size_name} is");
        return Err(unfit(rank_name, expected, rank.to_string()));
    }
    let local_rank = match variable(local_name) {
        Some(_) => number(variable, local_name)?,
        None => rank,
    };
    let host = address(variable, size, local_rank == rank)?;
    let port = match variable("MASTER_PORT") {
        Some(_) => number::<u16>(variable, "MASTER_PORT")?,
        None => PORT,
    };
    // `torchrun` listens at its port itself then.
    let has_agent = variable("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
    let port = port.wrapping_add(u16::from(has_agent));
    // The address may name its zone.
    let ip = host.split_once('%').map_or(host.as_str(), |(ip, _)| ip);
    let host = if ip.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host };
    Ok(Launch { rank, size, local_rank, meeting: Meeting::Address(format!("{host}:{port}")) })
}

/// The host of rank 0.
fn address(variable: Variable<'_>, size: usize, may_be_here: bool) -> Result<String> {
    if let Some(host) = variable("MASTER_ADDR") {
        return Ok(host);
    }
    if let Some(hosts) = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_NODELIST")) {
        return Ok(first_host(&hosts));
    }
    let local_size = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"].into_iter().find_map(variable);
    let is_here = match local_size.and_then(|text| text.parse::<usize>().ok()) {
        Some(local) => local == size,
        None => may_be_here,
    };
    if is_here {
        return Ok("127.0.0.1".into());
    }
    Err(unfit("MASTER_ADDR", "the address of rank 0's host".into(), "not set".into()))
}

/// The first of a list as Slurm writes it: `gpu[03-05,7],other`.
fn first_host(hosts: &str) -> String {
    let end = hosts.find([',', '[']).unwrap_or(hosts.len());
    let (name, rest) = hosts.split_at(end);
    let number: &str = match rest.strip_prefix('[') {
        Some(range) => range.split(['-', ',', ']']).next().unwrap_or(""),
        None => "",
    };
    format!("{name}{number}")
}

fn number<N: std::str::FromStr>(variable: Variable<'_>, name: &str) -> Result<N> {
    let text = variable(name).ok_or_else(|| unfit(name, "a number".into(), "not set".into()))?;
    text.trim().parse().map_err(|_| unfit(name, "a number".into(), format!("`{text}`")))
}

fn unfit(variable: &str, expected: String, actual: String) -> Error {
    Error::Environment { variable: variable.into(), expected, actual }
}

#[cfg(test)]
mod tests {
    use super::{Launch, Meeting, first_host, launch};

    fn of(variables: &[(&str, &str)]) -> crate::Result<Launch> {
        let find = |name: &str| variables.iter().find(|(own, _)| *own == name);
        launch(&|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn expect(variables: &[(&str, &str)], [rank, size, local_rank]: [usize; 3], address: &str) {
        let meeting = Meeting::Address(address.into());
        assert_eq!(of(variables).expect("they fit"), Launch { rank, size, local_rank, meeting });
    }

    #[test]
    fn each_launcher_is_understood() {
        let torch = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node"),
            ("MASTER_PORT", "1234"),
        ];
        expect(&torch, [5, 8, 1], "node:1234");
        for (host, expected) in [("fd00::7", "[fd00::7]:1234"), ("fe80::7%eth0", "[fe80::7%eth0]:1234")] {
            let by_ipv6 = torch.map(|(name, value)| (name, if name == "MASTER_ADDR" { host } else { value }));
            expect(&by_ipv6, [5, 8, 1], expected);
        }
        let mut agent = torch.to_vec();
        agent.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
        expect(&agent, [5, 8, 1], "node:1235");
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[03-04]"),
        ];
        expect(&slurm, [3, 4, 1], "gpu03:29500");
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        expect(&mpi, [1, 2, 1], "127.0.0.1:29500");
    }

    #[test]
    fn hosts_are_found_in_lists() {
        for (list, host) in
            [("a", "a"), ("a,b", "a"), ("gpu[3,5]", "gpu3"), ("n-[007-9],m", "n-007"), ("x[12]", "x12")]
        {
            assert_eq!(first_host(list), host);
        }
    }

    #[test]
    fn what_means_nothing_is_named() {
        for (variables, name) in [
            (&[][..], "RANK or "),
            (&[("RANK", "0")][..], "WORLD_SIZE is not set"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")][..], "RANK is `x`"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")][..], "RANK is 2, expected below 2"),
            (&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")][..], "MASTER_ADDR is not set"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "99999")][..], "MASTER_PORT is `99999`"),
        ] {
            let error = of(variables).expect_err("it is wrong").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
