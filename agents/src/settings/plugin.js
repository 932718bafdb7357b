// It tells `ah` of sessions, prompts and tools, one JSON object on standard input for each, and never fails: without `ah` it does nothing.
import { spawn } from "node:child_process"

const AH = "@AH@"
const LONGEST = 2000

export const Ah = async ({ directory }) => {
  // The sessions that have begun, each with its start, before which nothing else of it is told.
  const seen = new Map()
  // Sub-agents have sessions of their own there: what they do belongs to the one that was asked for it.
  const parents = new Map()
  const asked = (session) => (parents.has(session) ? asked(parents.get(session)) : session)

  const tell = (name, session, more) =>
    new Promise((done) => {
      const timer = setTimeout(done, LONGEST)
      const end = () => {
        clearTimeout(timer)
        done()
      }
      try {
        const child = spawn(AH, ["hook", "opencode"], { cwd: directory, stdio: ["pipe", "ignore", "ignore"] })
        child.on("error", end)
        child.on("close", end)
        child.stdin.on("error", () => {})
        child.stdin.end(JSON.stringify({ hook_event_name: name, session_id: session, cwd: directory, ...more }))
      } catch {
        end()
      }
    })

  const begin = (session) => {
    if (session && !seen.has(session)) seen.set(session, tell("SessionStart", session, { source: "startup" }))
    return seen.get(session)
  }

  return {
    event: async ({ event }) => {
      const info = event?.properties?.info
      const session = event?.properties?.sessionID ?? info?.id
      if (!session) return
      if (info?.parentID && info.id === session && info.parentID !== session) parents.set(session, info.parentID)
      if (parents.has(session)) return
      if (event.type === "session.created") await begin(session)
      await seen.get(session)
      if (event.type === "session.idle" && seen.has(session)) await tell("Stop", session, {})
      if (event.type === "session.deleted" && seen.delete(session)) await tell("SessionEnd", session, { reason: "deleted" })
    },
    "chat.message": async (input, output) => {
      const session = input?.sessionID ?? output?.message?.sessionID
      if (!session || parents.has(session)) return
      await begin(session)
      const texts = (output?.parts ?? []).filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text)
      await tell("UserPromptSubmit", session, { prompt: texts.join("\n"), prompt_id: output?.message?.id })
    },
    "tool.execute.before": async (input) => {
      const session = asked(input.sessionID)
      await begin(session)
      await tell("PreToolUse", session, { tool_name: input.tool, tool_use_id: input.callID })
    },
    "tool.execute.after": async (input) => {
      await tell("PostToolUse", asked(input.sessionID), { tool_name: input.tool, tool_use_id: input.callID, tool_input: input.args })
    },
  }
}
