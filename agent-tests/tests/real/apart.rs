//! Codex on a terminal, in a branch: it hands its session to a server in the background if it finds one, or may start one, which serves all that are
//! started later. What runs in a branch is to find none from outside, and the other way round.

use std::fs;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ah_agent_tests::agents::Agent;
use ah_agent_tests::namespace::without_network;
use ah_agent_tests::server::Server;
use ah_agent_tests::world::World;

const STORY: &str = "
name: apart
steps:
  - prompt: One
  - tool: {name: exec_command, input: {cmd: 'echo > one.txt'}}
  - say: Done.
conversations:
  - name: two
    steps:
      - prompt: Two
      - tool: {name: exec_command, input: {cmd: 'echo > two.txt'}}
      - say: Done.
  - name: three
    steps:
      - prompt: Three
      - tool: {name: exec_command, input: {cmd: 'echo > three.txt'}}
      - say: Done.
  - name: four
    steps:
      - prompt: Four
      - tool: {name: exec_command, input: {cmd: 'echo > four.txt'}}
      - say: Done.
";

/// A Codex on a terminal that is ended with this; not what it left in the background.
struct OnTerminal(Child, #[expect(dead_code, reason = "closed, it ends the terminal")] ChildStdin);

impl OnTerminal {
    /// Starts a shell's line on a terminal of its own, which `script` makes.
    fn start(world: &World, server: &Server, line: &str) -> Self {
        let mut command: Command = world.command("script");
        command.args(["-qfec", &format!("stty rows 40 cols 120; exec {line}"), "/dev/null"]);
        command.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::null());
        Agent::Codex.ask(&mut command, world, server);
        let config = world.path("home/.codex/config.toml");
        let trusted = format!("[projects.{:?}]\ntrust_level = \"trusted\"\n", world.path("work"));
        // Of a newer model than that it would ask at first whether it is to be taken.
        let text = fs::read_to_string(&config).unwrap().replace("gpt-5.5", "gpt-5") + &trusted;
        fs::write(&config, text).unwrap();
        let mut child = command.spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        Self(child, keys)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the file of that name comes to be: in the workspace or in the branch.
fn place_of(world: &World, name: &str) -> &'static str {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        for (what, folder) in [("workspace", "work"), ("branch", "state/branches/b")] {
            if world.path(folder).join(name).exists() {
                return what;
            }
        }
        assert!(Instant::now() < end, "{name} is nowhere");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn codex_in_a_branch_works_there_whatever_server_of_its_own_there_is() {
    without_network("apart::codex_in_a_branch_works_there_whatever_server_of_its_own_there_is", || {
        if !Agent::Codex.is_here() {
            return;
        }
        let world = World::new();
        Agent::Codex.install(&world);
        fs::write(world.path("work/f"), "f").unwrap();
        world.ah(["agent", "fs", "branch", "--name", "b", "--mode", "worktree"]);
        let server = Server::start(&world, Agent::Codex, STORY);
        let placed = |line: &str, name: &str| {
            let _running = OnTerminal::start(&world, &server, line);
            place_of(&world, name)
        };
        // The first of all, and by a shell, so that it may start a server.
        assert_eq!(placed("ah agent fs exec b -- sh -c 'codex One; exit'", "one.txt"), "branch");
        assert_eq!(placed("codex Two", "two.txt"), "workspace");
        // By now there is a server outside.
        assert_eq!(placed("ah agent fs exec b -- sh -c 'codex Three; exit'", "three.txt"), "branch");
        assert_eq!(placed("ah agent fs exec b -- codex Four", "four.txt"), "branch");
        // What the shells' started is still in the branch.
        let refused = world.command("ah").args(["agent", "fs", "rm", "b"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("process"), "{refused:?}");
        // Its sockets lie in a folder of the user's, and would stay there.
        for link in ["app-server-control/app-server-control.sock", "app-server-daemon/daemon-updater.sock"] {
            if let Ok(socket) = fs::read_link(world.path("home/.codex").join(link)) {
                let _ = fs::remove_file(&socket);
                let _ = fs::remove_file(socket.with_extension("lock"));
            }
        }
    });
}
