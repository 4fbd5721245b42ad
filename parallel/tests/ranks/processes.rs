//! Real processes: this test's program, started again as each of the ranks.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use warpsmith::Device;
use warpsmith_parallel::{Communicator, Launch, Reduction, Result};

use crate::support::{free_port, vector};

/// The variable that says what a process is to do as a rank.
const ROLE: &str = "WARPSMITH_TEST_ROLE";
/// How long ranks wait.
const LIMIT: Duration = Duration::from_secs(30);

/// What the processes do; nothing where the program was started as the test.
#[test]
fn as_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match rank(&role) {
        Ok(()) => println!("{role} is done"),
        Err(error) => {
            println!("{role}: {error}");
            std::process::exit(3);
        }
    }
}

fn rank(role: &str) -> Result<()> {
    let communicator = Communicator::connect(&Launch::from_environment()?, LIMIT)?;
    for step in 0..5 {
        if role == "killed" && step == 3 {
            // As `kill -9` would: no farewell, no destructor.
            std::process::abort();
        }
        let mut tensor = vector(&[communicator.rank() as f32; 5]);
        communicator.all_reduce(&mut tensor, Reduction::Sum)?;
        assert_eq!(tensor.to_vec()?, [3.0; 5]);
    }
    communicator.barrier(&Device::cpu())
}

fn run(roles: [&str; 3]) -> Vec<Output> {
    let (port, program) = (free_port().to_string(), std::env::current_exe().expect("this program is a file"));
    let processes: Vec<_> = roles
        .iter()
        .enumerate()
        .map(|(rank, role)| {
            let mut command = Command::new(&program);
            command.args(["--exact", "processes::as_rank", "--nocapture"]);
            command.env(ROLE, role).env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().expect("it starts")
        })
        .collect();
    processes.into_iter().map(|process| process.wait_with_output().expect("it ends")).collect()
}

#[test]
fn processes_add_up() {
    for output in run(["one", "two", "three"]) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("is done"), "{said}");
    }
}

#[test]
fn a_process_that_is_killed_ends_the_others_with_its_name() {
    let start = Instant::now();
    let outputs = run(["one", "killed", "three"]);
    // At once, not when the limit is over.
    assert!(start.elapsed() < LIMIT);
    for rank in [0, 2] {
        let said = String::from_utf8_lossy(&outputs[rank].stdout);
        assert_eq!(outputs[rank].status.code(), Some(3), "{said}");
        assert!(said.contains("rank 1 is gone") && said.contains("as call 3"), "{said}");
    }
}
