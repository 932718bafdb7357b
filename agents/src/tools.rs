//! What is known of agents' tools: which of them never write in a workspace, and when those of sub-agents have ended.
//!
//! A snapshot that was taken while such a one ran shows what it shows without it. A tool that is not known may write. One that only
//! starts a sub-agent does not: that one's own tools are told of by themselves.

use crate::Agent;

const CLAUDE: &[&str] = &[
    "Agent",
    "AskUserQuestion",
    "BashOutput",
    "EnterPlanMode",
    "ExitPlanMode",
    "Glob",
    "Grep",
    "KillShell",
    "LS",
    "ListMcpResourcesTool",
    "NotebookRead",
    "Read",
    "ReadMcpResourceTool",
    "Task",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskOutput",
    "TaskStop",
    "TaskUpdate",
    "TodoRead",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
];
const CODEX: &[&str] = &[
    "close_agent",
    "create_goal",
    "get_goal",
    "list_mcp_resource_templates",
    "list_mcp_resources",
    "read_mcp_resource",
    "request_user_input",
    "resume_agent",
    "send_input",
    "spawn_agent",
    "update_goal",
    "update_plan",
    "view_image",
    "wait_agent",
    "web_search",
];
/// What Codex puts before the names of its tools for sub-agents, of all but one of them (0.169.0).
const CODEX_AGENTS: &str = "multi_agent_v1";
const GEMINI: &[&str] = &[
    "glob",
    "google_web_search",
    "grep_search",
    "list_directory",
    "read_file",
    "read_many_files",
    "search_file_content",
    "web_fetch",
    "write_todos",
];
const OPENCODE: &[&str] = &[
    "codesearch",
    "glob",
    "grep",
    "list",
    "question",
    "read",
    "task",
    "todoread",
    "todowrite",
    "webfetch",
    "websearch",
];

/// Whether a tool of that name may write in the workspace.
#[must_use]
pub fn may_write(agent: Agent, tool: &str) -> bool {
    let (harmless, tool) = match agent {
        Agent::Claude => (CLAUDE, tool),
        Agent::Codex => (CODEX, tool.strip_prefix(CODEX_AGENTS).unwrap_or(tool)),
        Agent::Gemini => (GEMINI, tool),
        Agent::Opencode => (OPENCODE, tool),
    };
    !harmless.contains(&tool)
}

/// Whether all sub-agents have ended when the agent's turn has, or a new prompt comes after it was interrupted; but for those that the agent
/// said to go on in the background ([`HookEvent::launched`](crate::hook::HookEvent::launched)). Codex says nothing of the
/// kind.
#[must_use]
pub fn end_with_turn(agent: Agent) -> bool {
    agent == Agent::Claude
}

#[cfg(test)]
mod tests {
    use super::may_write;
    use crate::Agent;

    #[test]
    fn what_is_not_known_may_write() {
        assert!(!may_write(Agent::Claude, "Read") && !may_write(Agent::Gemini, "read_file"));
        for tool in ["Bash", "Edit", "Write", "NotebookEdit", "mcp__files__write", "read"] {
            assert!(may_write(Agent::Claude, tool), "{tool}");
        }
        assert!(may_write(Agent::Codex, "Bash") && may_write(Agent::Codex, "apply_patch"));
        assert!(!may_write(Agent::Codex, "spawn_agent") && !may_write(Agent::Codex, "multi_agent_v1wait_agent"));
    }
}
