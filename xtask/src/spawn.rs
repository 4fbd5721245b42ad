//! `xtask spawn`: a program as several ranks on this machine.
//!
//! Each process finds its rank in the variables that `torchrun` sets, too. When one fails the others are ended.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// Start a program as several ranks on this machine.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// How many.
    ranks: usize,
    /// The port at which they meet. [default: a free one]
    #[arg(long)]
    port: Option<u16>,
    /// Seconds that ranks get to end by themselves after one has failed.
    #[arg(long, default_value_t = 5.0)]
    grace: f64,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// Between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(10);

/// A rank's process.
struct Process {
    child: Child,
    output: Vec<JoinHandle<()>>,
    /// Whether it has ended, and how.
    code: Option<i32>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.ranks > 0, "ranks is 0, expected at least 1");
    let port = match args.port {
        Some(port) => port,
        None => free_port()?,
    };
    let mut processes = Vec::with_capacity(args.ranks);
    for rank in 0..args.ranks {
        match start(args, rank, port) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter_mut().for_each(Process::kill);
                return Err(error);
            }
        }
    }
    let code = wait(&mut processes, Duration::try_from_secs_f64(args.grace).unwrap_or_default())?;
    for output in processes.into_iter().flat_map(|process| process.output) {
        // A thread that panicked has said so.
        let _ = output.join();
    }
    Ok(ExitCode::from(code))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

fn start(args: &Args, rank: usize, port: u16) -> Result<Process> {
    let (program, arguments) = args.program.split_first().context("there is no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ranks = args.ranks.to_string();
    for (name, value) in [
        ("RANK", &rank.to_string()),
        ("LOCAL_RANK", &rank.to_string()),
        ("WORLD_SIZE", &ranks),
        ("LOCAL_WORLD_SIZE", &ranks),
        ("MASTER_ADDR", &"127.0.0.1".to_owned()),
        ("MASTER_PORT", &port.to_string()),
        // Multicast objects are never made.
        ("NCCL_NVLS_ENABLE", &"0".to_owned()),
    ] {
        command.env(name, value);
    }
    // The port is ours, whatever started this process.
    command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = [stdout.map(|from| copy(rank, from, false)), stderr.map(|from| copy(rank, from, true))];
    Ok(Process { child, output: output.into_iter().flatten().collect(), code: None })
}

/// Copies lines, each with the rank before it.
fn copy(rank: usize, from: impl Read + Send + 'static, is_error: bool) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line);
            let text = format!("[{rank}] {}\n", text.trim_end_matches(['\n', '\r']));
            // Whoever reads it may be gone.
            let _ = match is_error {
                true => std::io::stderr().lock().write_all(text.as_bytes()),
                false => std::io::stdout().lock().write_all(text.as_bytes()),
            };
            line.clear();
        }
    })
}

/// Waits for all processes; once one has failed, for the others no longer than the grace. The code of the first that failed.
fn wait(processes: &mut [Process], grace: Duration) -> Result<u8> {
    let mut failed: Option<(u8, Instant)> = None;
    loop {
        for (rank, process) in processes.iter_mut().enumerate() {
            if let Some(code) = process.newly_ended()?
                && code != 0
                && failed.is_none()
            {
                eprintln!("rank {rank} failed with code {code}; the others are ended");
                failed = Some((u8::try_from(code).unwrap_or(1), Instant::now()));
            }
        }
        if processes.iter().all(|process| process.code.is_some()) {
            return Ok(failed.map_or(0, |(code, _)| code));
        }
        if failed.is_some_and(|(_, since)| since.elapsed() > grace) {
            processes.iter_mut().filter(|process| process.code.is_none()).for_each(Process::kill);
        }
        std::thread::sleep(PAUSE);
    }
}

impl Process {
    /// Its code, if it has ended since it was asked last. One that a signal ended has none, which counts as 1.
    fn newly_ended(&mut self) -> Result<Option<i32>> {
        if self.code.is_some() {
            return Ok(None);
        }
        self.code =
            self.child.try_wait().context("cannot wait for a rank")?.map(|status| status.code().unwrap_or(1));
        Ok(self.code)
    }

    fn kill(&mut self) {
        // It may have ended meanwhile.
        let _ = self.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;
    use std::time::Instant;

    use super::{Args, run};

    fn code(ranks: usize, script: &str) -> (String, f64) {
        let program = ["sh", "-c", script].map(str::to_owned).to_vec();
        let start = Instant::now();
        let code = run(&Args { ranks, port: None, grace: 0.3, program }).expect("it starts");
        (format!("{code:?}"), start.elapsed().as_secs_f64())
    }

    #[test]
    fn each_rank_finds_its_variables() {
        let script = r#"test $RANK -lt 3 && test $WORLD_SIZE = 3 && test $LOCAL_RANK = $RANK \
            && test $MASTER_ADDR = 127.0.0.1 && test $MASTER_PORT -gt 0 && test $NCCL_NVLS_ENABLE = 0"#;
        assert_eq!(code(3, script).0, format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn a_rank_that_fails_ends_the_others_and_gives_its_code() {
        let (found, seconds) = code(3, "test $RANK = 1 && exit 7; exec sleep 60");
        assert_eq!(found, format!("{:?}", ExitCode::from(7)));
        assert!(seconds < 30.0);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let program = vec!["/nowhere/program".to_owned()];
        let error = run(&Args { ranks: 2, port: None, grace: 0.0, program }).expect_err("there is none");
        assert!(error.to_string().contains("cannot start /nowhere/program"), "{error}");
    }
}
