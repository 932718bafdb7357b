//! The agents: the real ones as they come from npm, told to ask a mock server, and the mock one in their place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::Server;
use crate::world::World;

/// Where `scripts/setup agents` puts them.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/agents/node_modules");

/// An agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// The mock agent, under Claude Code's name. It asks no server.
    Mock,
}

impl Agent {
    /// Its program, in the version that the tests are written for.
    fn program(self) -> Option<PathBuf> {
        let (name, package, version) = match self {
            Self::Mock => return Some(crate::programs().join("mock-agent")),
            Self::Claude => ("claude", "@anthropic-ai/claude-code", "2.1.197"),
            Self::Codex => ("codex", "@openai/codex", "0.169.0"),
        };
        let about = fs::read_to_string(Path::new(FOLDER).join(package).join("package.json")).ok()?;
        let about: serde_json::Value = serde_json::from_str(&about).ok()?;
        let program = Path::new(FOLDER).join(".bin").join(name);
        (about["version"] == version && program.exists()).then_some(program)
    }

    /// Whether it is there; the test is skipped if not.
    #[must_use]
    pub fn is_here(self) -> bool {
        let here = self.program().is_some() && (self == Self::Mock || node_folder().is_some());
        if !here {
            crate::skip(&format!("{self:?} is not installed; `scripts/setup agents` does that"));
        }
        here
    }

    /// What `ah` calls it, and its program's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self == Self::Codex { "codex" } else { "claude" }
    }

    /// Puts it on the world's `PATH`, where `ah` finds it too, and lets it do all that its model wants.
    pub fn install(self, world: &World) {
        std::os::unix::fs::symlink(self.program().unwrap(), world.path("bin").join(self.name())).unwrap();
        if self == Self::Codex {
            fs::create_dir_all(world.path("home/.codex")).unwrap();
        } else {
            fs::create_dir_all(world.path("home/.claude")).unwrap();
            let settings = "{\n  \"permissions\": {\"defaultMode\": \"bypassPermissions\"}\n}\n";
            fs::write(world.path("home/.claude/settings.json"), settings).unwrap();
        }
    }

    /// Has a command, which is or starts the agent, ask that server and nobody else.
    pub fn ask(self, command: &mut Command, world: &World, server: &Server) {
        match self {
            Self::Claude => {
                command
                    .env("ANTHROPIC_BASE_URL", &server.url)
                    .env("ANTHROPIC_API_KEY", "any")
                    .env("DISABLE_AUTOUPDATER", "1")
                    .env("DISABLE_TELEMETRY", "1")
                    .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
                    // It is to work as root in a container.
                    .env("IS_SANDBOX", "1");
            }
            Self::Mock => {
                command.env("MOCK_AGENT_SCENARIO", world.path("scenario.yaml"));
            }
            Self::Codex => {
                command.env("MOCK_KEY", "any");
                // A model that it knows, so that it offers its own tool for patches.
                let config = format!(
                    "model = \"gpt-5.5\"\nmodel_provider = \"mock\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
                     [model_providers.mock]\nname = \"mock\"\n\
                     base_url = \"{}/v1\"\nwire_api = \"responses\"\nenv_key = \"MOCK_KEY\"\n",
                    server.url
                );
                fs::write(world.path("home/.codex/config.toml"), config).unwrap();
            }
        }
    }

    /// One prompt to it, without a screen; `more` stands before the prompt.
    #[must_use]
    pub fn prompt(self, world: &World, server: &Server, more: &[&str], prompt: &str) -> Command {
        let mut command = world.command(self.name());
        match self {
            Self::Claude | Self::Mock => command.arg("-p").args(more),
            Self::Codex => {
                // Hooks that nobody looked through would not be run.
                command.arg("exec").args(more).args(["--skip-git-repo-check", "--dangerously-bypass-hook-trust"])
            }
        };
        command.arg(prompt);
        self.ask(&mut command, world, server);
        command
    }
}

/// Where Node.js is, which both are started by.
#[must_use]
pub fn node_folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|folder| folder.join("node").is_file())
}
