//! How processes find each other: each tells rank 0 where it listens, and gets the addresses of all.
//!
//! A rank listens by the protocol that it has reached rank 0 by, IPv4 or IPv6, and rank 0 by that of the address that it is given.
//! Link-local addresses are of an interface, their zone. Each host has numbers of its own for those, so that none is told to others:
//! a rank reaches all others by the zone by which it has reached rank 0.
//!
//! Rank 0 answers only when all have come, when two of them do not fit together, or when its time is over. So every rank gets
//! the same answer.

use std::io::{Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs, UdpSocket,
};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Launch, Meeting};
use crate::error::{Error, Result, argument, io};

/// What a rank says first, so that others that connect are not taken for one.
const GREETING: [u8; 8] = *b"warpsm01";
/// The greeting, rank, number of ranks, port.
const HELLO: usize = 32;
/// How long is waited for what a connection says first.
const HELLO_LIMIT: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How much longer than rank 0 another rank waits for its answer.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of an answer at most.
const LARGEST: u64 = 1 << 24;

/// What rank 0 answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Answer {
    /// Where each rank listens.
    All(Vec<(IpAddr, u16)>),
    WorldSize {
        rank: usize,
        expected: usize,
        actual: usize,
    },
    Duplicate {
        rank: usize,
    },
    Missing {
        ranks: Vec<usize>,
    },
}

impl Answer {
    fn into_addresses(self, launch: &Launch, address: &str, limit: Duration) -> Result<Vec<(IpAddr, u16)>> {
        let size = launch.size;
        match self {
            Self::All(addresses) if addresses.len() == size => Ok(addresses),
            Self::All(addresses) => {
                Err(Error::WorldSize { rank: launch.rank, expected: addresses.len(), actual: size })
            }
            Self::WorldSize { rank, expected, actual } => Err(Error::WorldSize { rank, expected, actual }),
            Self::Duplicate { rank } => Err(Error::DuplicateRank { rank, size }),
            Self::Missing { ranks } => Err(Error::MissingRanks { address: address.into(), ranks, limit }),
        }
    }
}

/// A connection of a rank.
struct Guest {
    rank: usize,
    size: usize,
    port: u16,
    stream: TcpStream,
    address: IpAddr,
}

/// Where this rank listens, and where each rank does.
pub(crate) fn meet(launch: &Launch, limit: Duration) -> Result<(TcpListener, Vec<String>)> {
    match launch.rank {
        0 => receive_all(launch, limit),
        _ => visit(launch, limit),
    }
}

fn receive_all(launch: &Launch, limit: Duration) -> Result<(TcpListener, Vec<String>)> {
    let deadline = Instant::now() + limit;
    let (listener, address, file) = match &launch.meeting {
        Meeting::Address(address) => (listen(address)?, address.clone(), None),
        Meeting::File(path) => {
            let own = own_address();
            let listener = listen_like(own, 0)?;
            let address = SocketAddr::new(own, port_of(&listener)?).to_string();
            write_whole(path, address.as_bytes())?;
            (listener, address, Some(path))
        }
    };
    let of_rank = listen_like(listener.local_addr().map_err(io("listening on", &address))?.ip(), 0)?;
    let (answer, guests) = assemble(launch, &of_rank, &listener, deadline)?;
    let bytes = serde_json::to_vec(&answer).unwrap_or_default();
    for mut guest in guests {
        // Who has gone meanwhile is missed later.
        let _ = guest.stream.write_all(&(bytes.len() as u64).to_le_bytes());
        let _ = guest.stream.write_all(&bytes);
    }
    if let Some(path) = file {
        let _ = std::fs::remove_file(path);
    }
    let addresses = answer.into_addresses(launch, &address, limit)?;
    Ok((of_rank, addresses.into_iter().map(|(ip, port)| SocketAddr::new(ip, port).to_string()).collect()))
}

/// Waits for all ranks, and says what came of it.
fn assemble(
    launch: &Launch,
    of_rank: &TcpListener,
    listener: &TcpListener,
    deadline: Instant,
) -> Result<(Answer, Vec<Guest>)> {
    let size = launch.size;
    let mut guests: Vec<Guest> = Vec::new();
    while guests.len() + 1 < size {
        let Some((stream, address)) = accept(listener, deadline)? else {
            let has_come = |rank: &usize| guests.iter().any(|guest| guest.rank == *rank);
            let ranks = (1..size).filter(|rank| !has_come(rank)).collect();
            return Ok((Answer::Missing { ranks }, guests));
        };
        let Some(guest) = greet(stream, address) else { continue };
        let (rank, actual) = (guest.rank, guest.size);
        let is_twice = rank == 0 || guests.iter().any(|other| other.rank == rank);
        guests.push(guest);
        if actual != size {
            return Ok((Answer::WorldSize { rank, expected: size, actual }, guests));
        }
        if is_twice {
            return Ok((Answer::Duplicate { rank }, guests));
        }
    }
    guests.sort_by_key(|guest| guest.rank);
    let own = (
        loopback_like(of_rank.local_addr().map_err(io("listening on", "any port"))?.ip()),
        port_of(of_rank)?,
    );
    let all = std::iter::once(own).chain(guests.iter().map(|guest| (guest.address, guest.port)));
    Ok((Answer::All(all.collect()), guests))
}

/// The rank that a connection is of; `None` if it is of none.
fn greet(mut stream: TcpStream, address: SocketAddr) -> Option<Guest> {
    stream.set_read_timeout(Some(HELLO_LIMIT)).ok()?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).ok()?;
    let word = |at: usize| hello[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    if hello[..8] != GREETING {
        return None;
    }
    let (rank, size) = (usize::try_from(word(8)?).ok()?, usize::try_from(word(16)?).ok()?);
    if rank >= size {
        return None;
    }
    Some(Guest {
        rank,
        size,
        port: u16::try_from(word(24)?).ok()?,
        stream,
        address: address.ip().to_canonical(),
    })
}

fn visit(launch: &Launch, limit: Duration) -> Result<(TcpListener, Vec<String>)> {
    let deadline = Instant::now() + limit;
    if let Meeting::Address(address) = &launch.meeting {
        expect_port(address)?;
        expect_zone(address)?;
    }
    loop {
        // The file may be of an earlier run, and the port that of another program.
        if let Some(address) = address_of(&launch.meeting)
            && let Ok((answer, host, listener)) = ask(&address, launch, limit)
        {
            let addresses = answer.into_addresses(launch, &address, limit)?;
            let all = addresses.into_iter().map(|(ip, port)| reached_like(host, ip, port).to_string());
            return Ok((listener, all.collect()));
        }
        if Instant::now() >= deadline {
            let address = match &launch.meeting {
                Meeting::Address(address) => address.clone(),
                Meeting::File(path) => path.display().to_string(),
            };
            return Err(Error::MissingRanks { address, ranks: vec![0], limit });
        }
        std::thread::sleep(PAUSE);
    }
}

fn address_of(meeting: &Meeting) -> Option<String> {
    match meeting {
        Meeting::Address(address) => Some(address.clone()),
        Meeting::File(path) => std::fs::read_to_string(path).ok(),
    }
}

/// What rank 0 answers, at which address it was reached, and where this rank listens, which rank 0 is told.
fn ask(
    address: &str,
    launch: &Launch,
    limit: Duration,
) -> std::io::Result<(Answer, SocketAddr, TcpListener)> {
    let mut stream = connect_once(address)?;
    let listener = TcpListener::bind((any_like(stream.local_addr()?.ip()), 0))?;
    let port = listener.local_addr()?.port();
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&GREETING);
    for (at, word) in [(8, launch.rank as u64), (16, launch.size as u64), (24, u64::from(port))] {
        hello[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    stream.write_all(&hello)?;
    stream.set_read_timeout(Some(limit + GRACE))?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length).min(LARGEST);
    let host = stream.peer_addr()?;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes)?;
    Ok((serde_json::from_slice(&bytes).map_err(std::io::Error::other)?, host, listener))
}

fn connect_once(address: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for address in resolve(address)? {
        match TcpStream::connect_timeout(&address, HELLO_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where another rank listens, of which rank 0 says this, for a rank that has reached rank 0 at `host`.
fn reached_like(host: SocketAddr, ip: IpAddr, port: u16) -> SocketAddr {
    let mut reached = SocketAddr::new(ip, port);
    match (&mut reached, host) {
        // What is local to rank 0 is reached as rank 0 was.
        (reached, mut host) if ip.is_loopback() => {
            host.set_port(port);
            *reached = host;
        }
        (SocketAddr::V6(reached), SocketAddr::V6(host)) if reached.ip().is_unicast_link_local() => {
            reached.set_scope_id(host.scope_id());
        }
        _ => {}
    }
    reached
}

/// The addresses of `host:port`.
fn resolve(address: &str) -> std::io::Result<Vec<SocketAddr>> {
    let Some((ip, zone, port)) = with_zone(address) else { return Ok(address.to_socket_addrs()?.collect()) };
    let number = number_of(zone).ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    Ok(vec![SocketAddrV6::new(ip, port, 0, number).into()])
}

/// The parts of `[address%zone]:port`.
fn with_zone(address: &str) -> Option<(Ipv6Addr, &str, u16)> {
    let (host, port) = address.strip_prefix('[')?.rsplit_once("]:")?;
    let (ip, zone) = host.split_once('%')?;
    Some((ip.parse().ok()?, zone, port.parse().ok()?))
}

/// An interface's number, by its name or the number itself.
fn number_of(zone: &str) -> Option<u32> {
    let by_name = || {
        let is_name = !zone.is_empty() && !zone.contains('/');
        let file = is_name.then(|| Path::new("/sys/class/net").join(zone).join("ifindex"))?;
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    zone.parse().ok().or_else(by_name)
}

/// The port of `host:port`. A link-local address has a zone.
fn expect_port(address: &str) -> Result<u16> {
    let unfit = |expected| Err(argument("rendezvous", "address", expected, format!("`{address}`")));
    let Some(port) = address.rsplit(':').next().and_then(|port| port.parse().ok()) else {
        return unfit("`host:port`, with brackets round a host that is an IPv6 address");
    };
    match address.parse::<SocketAddrV6>() {
        Ok(own) if own.ip().is_unicast_link_local() && own.scope_id() == 0 => {
            unfit("a link-local address with its interface, as `[fe80::1%eth0]:port` or `[fe80::1%2]:port`")
        }
        _ => Ok(port),
    }
}

/// Holds the zone of an address, if it has one, to being an interface's of this host.
fn expect_zone(address: &str) -> Result<()> {
    match with_zone(address) {
        Some((_, zone, _)) if number_of(zone).is_none() => {
            let expected =
                "one whose zone, after `%`, is the name or the number of an interface of this host";
            Err(argument("rendezvous", "address", expected, format!("`{address}`")))
        }
        _ => Ok(()),
    }
}

/// A connection to an address, tried until the deadline.
pub(crate) fn dial(address: &str, deadline: Instant) -> Result<TcpStream> {
    loop {
        match connect_once(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= deadline => return Err(io("connecting to", address)(error)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// The next connection; `None` if none comes before the deadline.
pub(crate) fn accept(listener: &TcpListener, deadline: Instant) -> Result<Option<(TcpStream, SocketAddr)>> {
    let failed = || io("listening for", "other ranks");
    listener.set_nonblocking(true).map_err(failed())?;
    loop {
        match listener.accept() {
            Ok((stream, address)) => {
                stream.set_nonblocking(false).map_err(failed())?;
                stream.set_read_timeout(Some(HELLO_LIMIT)).map_err(failed())?;
                return Ok(Some((stream, address)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(failed()(error)),
        }
    }
}

fn listen(address: &str) -> Result<TcpListener> {
    // The port counts: the address may be one by which others reach this host, and its zone one of theirs.
    let port = expect_port(address)?;
    if let Some((ip, ..)) = with_zone(address) {
        return listen_like(ip.into(), port);
    }
    // A host that has addresses of both kinds is reached by IPv4; one that is not known here, too.
    let mut known = address.to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let first = known.next();
    let ip = match first {
        Some(ip) if ip.is_ipv6() => known.find(IpAddr::is_ipv4).unwrap_or(ip),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    listen_like(ip, port)
}

/// A listener at all addresses of this host that are of the kind of this one.
fn listen_like(ip: IpAddr, port: u16) -> Result<TcpListener> {
    let all = SocketAddr::new(any_like(ip), port);
    TcpListener::bind(all).map_err(io("listening on", all))
}

fn port_of(listener: &TcpListener) -> Result<u16> {
    Ok(listener.local_addr().map_err(io("listening on", "any port"))?.port())
}

/// The address that stands for all of a host's of this kind.
fn any_like(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A host's address for itself, of this kind.
fn loopback_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The address of this host by which it would reach others; nothing is sent.
fn own_address() -> IpAddr {
    // Addresses of documentation, which no host has.
    let found =
        [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")].into_iter().find_map(|(any, other)| {
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(other).ok()?;
            socket.local_addr().ok()
        });
    found.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

/// Writes a file so that others see all of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || io("writing", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file =
        tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new("."))).map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.persist(path).map(drop).map_err(|error| failed()(error.error))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::{Error, Result, expect_port, expect_zone, number_of, reached_like, resolve, with_zone};

    fn parsed<T: std::str::FromStr>(text: &str) -> T {
        text.parse().ok().expect("it is one")
    }

    #[test]
    fn zones_are_names_and_numbers() {
        let loopback = number_of("lo").expect("every host has it");
        for zone in ["lo".to_owned(), loopback.to_string()] {
            let address = format!("[fe80::7%{zone}]:80");
            let found = resolve(&address).expect("it is one");
            assert_eq!(found, [parsed(&format!("[fe80::7%{loopback}]:80"))]);
            expect_port(&address).and_then(|_| expect_zone(&address)).expect("it is one");
        }
        for zone in ["", "..", "../net/lo", "no-such-interface", "4294967296"] {
            assert_eq!(number_of(zone), None, "{zone}");
        }
        for other in ["[::1]:80", "host:80", "fe80::1%lo:80", "[fe80::1%lo]", "[fe80::g%lo]:80"] {
            assert_eq!(with_zone(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_that_nobody_can_reach_are_named() {
        let expect = |result: Result<()>, address: &str, words: &str| match result {
            Err(Error::Argument { actual, expected, .. }) => {
                assert_eq!(actual, format!("`{address}`"));
                assert!(expected.contains(words), "{expected}");
            }
            other => panic!("{address}: {other:?}"),
        };
        for address in ["[fe80::1]:80", "[fe80::1%0]:80", "[febf::1]:80"] {
            expect(expect_port(address).map(drop), address, "with its interface");
        }
        for address in ["[::1]:80", "[fec0::1]:80", "[fe80::1%3]:80", "[fe80::1%elsewhere]:80", "host:80"] {
            assert_eq!(expect_port(address).ok(), Some(80), "{address}");
        }
        for address in ["", "host", "[fe80::1%lo]", "host:65536"] {
            expect(expect_port(address).map(drop), address, "`host:port`");
        }
        for address in ["[fe80::1%no-such-interface]:80", "[fe80::1%]:80"] {
            expect(expect_zone(address), address, "of an interface of this host");
        }
    }

    #[test]
    fn others_are_reached_by_the_zone_that_rank_0_is_reached_by() {
        let reached = |host: &str, ip: &str| reached_like(parsed(host), parsed::<IpAddr>(ip), 5);
        for (host, ip, expected) in [
            ("[fe80::1%3]:80", "fe80::2", "[fe80::2%3]:5"),
            ("[fe80::1%3]:80", "::1", "[fe80::1%3]:5"),
            ("[fe80::1%3]:80", "fd00::2", "[fd00::2]:5"),
            ("[fd00::1]:80", "::1", "[fd00::1]:5"),
            ("10.0.0.1:80", "127.0.0.1", "10.0.0.1:5"),
            ("10.0.0.1:80", "10.0.0.2", "10.0.0.2:5"),
        ] {
            assert_eq!(reached(host, ip), parsed::<SocketAddr>(expected), "{host} {ip}");
        }
    }
}
