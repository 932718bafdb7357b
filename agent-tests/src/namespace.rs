//! Runs a test where there is no network: again, as a program of its own, in namespaces that end with it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Says inside which test it is inside.
const INSIDE: &str = "AH_AGENT_TESTS_INSIDE";

/// No test may take longer, on a busy machine either.
const LONGEST: Duration = Duration::from_secs(600);

/// Runs `body`, the body of the test of that name, with nothing but loopback, and with everything it starts ended when it ends.
pub fn without_network(test: &str, body: impl FnOnce()) {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let devices = fs::read_to_string("/proc/self/net/dev").unwrap();
        let devices: Vec<&str> =
            devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
        // Tunnels that the kernel puts into every namespace lead nowhere while they are down.
        assert!(devices.contains(&"lo"), "{devices:?}");
        let far = "192.0.2.1:443".parse().unwrap();
        let reached = std::net::TcpStream::connect_timeout(&far, Duration::from_secs(1));
        assert_eq!(reached.unwrap_err().kind(), std::io::ErrorKind::NetworkUnreachable);
        return body();
    }
    built();
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let able = Command::new("unshare").args(unshare.get_args()).arg("true").stderr(Stdio::null()).status();
    if !able.is_ok_and(|status| status.success()) || !has("ip") {
        return crate::skip("needs network namespaces: `unshare --net` as this user, and `ip`");
    }
    let own = std::env::current_exe().unwrap();
    unshare.arg(own).args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(INSIDE, test);
    let mut inside = unshare.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    // Passed on as it comes.
    let mut stdout = BufReader::new(inside.stdout.take().unwrap());
    let says = std::thread::spawn(move || {
        let (mut one_passed, mut line) = (false, Vec::new());
        while stdout.read_until(b'\n', &mut line).unwrap() > 0 {
            one_passed |= line.starts_with(b"test result: ok. 1 passed");
            std::io::stdout().write_all(&line).unwrap();
            line.clear();
        }
        one_passed
    });
    let until = Instant::now() + LONGEST;
    let status = loop {
        match inside.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = inside.kill();
                let _ = inside.wait();
                panic!("{test} took longer than {LONGEST:?}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // What it said is written by then.
    let one_passed = says.join().unwrap();
    assert!(status.success(), "{test}, in its namespaces: {status}; what it said is above");
    assert!(one_passed, "there is no test {test} to be run in namespaces");
}

/// Whether there is a program of that name.
pub(crate) fn has(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|folder| folder.join(name).is_file())
}

/// Builds the programs under test: `cargo test` builds those of other packages only for the whole workspace.
fn built() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os("AH_TEST_PLUGINS_BUILT").is_none() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args([
                "build",
                "--quiet",
                "--offline",
                "-p",
                "ah-cli",
                "-p",
                "ah-provider-git-plugin",
                "-p",
                "ah-mocks",
            ]);
            assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        }
        for program in ["ah", "mock-agent", "mock-model-server", "libah_provider_git.so"] {
            assert!(crate::programs().join(program).is_file(), "{program} is not built");
        }
    });
}
