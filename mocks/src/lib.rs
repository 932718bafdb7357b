//! A mock agent and a mock model server that play the same scenarios, so that what `ah` does around an agent can be tested
//! without a network, without an account, and the same each time.
//!
//! | module | what it is for |
//! |---|---|
//! | [`scenario`] | the format, read and checked |
//! | [`script`] | where in a scenario a conversation stands, and what comes next |
//! | [`conversation`] | what was said, out of requests and transcripts in their various forms |
//! | [`server`] | `mock-model-server`: the APIs of Anthropic and OpenAI as far as Claude Code and Codex use them |
//! | [`agent`] | `mock-agent`: hooks, transcript and tools as Claude Code has them |
//!
//! Nothing here knows `ah`; the mock agent only runs it, for the checks of a scenario. `mocks/README.md` is for those who write
//! scenarios.

pub mod agent;
pub mod conversation;
pub mod ids;
pub mod scenario;
pub mod script;
pub mod server;
