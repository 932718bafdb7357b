//! Colour. Nothing is said by colour alone.

use crate::args::Color;
use crate::env::Env;

/// What a piece of text is, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `error:`
    Error,
    /// `warning:`
    Warning,
    /// `hint:`
    Hint,
    /// Beside the point.
    Dim,
    /// A title.
    Bold,
    /// An id or a REF.
    Id,
    /// Added, good.
    Added,
    /// Deleted, bad.
    Deleted,
    /// Changed.
    Changed,
}

/// Paints, or leaves as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Painter {
    on: bool,
    seen: bool,
}

impl Painter {
    /// For what goes to stdout.
    pub(crate) fn stdout(color: Color, env: &Env) -> Self {
        Self::new(color, env, env.stdout_terminal)
    }

    /// For what goes to stderr.
    pub(crate) fn stderr(color: Color, env: &Env) -> Self {
        Self::new(color, env, env.stderr_terminal)
    }

    /// For what is not shown as it is.
    pub(crate) fn plain() -> Self {
        Self { on: false, seen: false }
    }

    fn new(color: Color, env: &Env, terminal: bool) -> Self {
        let on = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && !env.no_color,
        };
        Self { on, seen: on || terminal }
    }

    /// Whether a person's terminal shows it, by all that is known.
    pub(crate) fn is_seen(self) -> bool {
        self.seen
    }

    /// `text` in the colour of `style`.
    pub(crate) fn paint(self, text: &str, style: Style) -> String {
        if !self.on || text.is_empty() {
            return text.to_owned();
        }
        let code = match style {
            Style::Error => "1;31",
            Style::Warning => "1;33",
            Style::Hint => "1;36",
            Style::Dim => "2",
            Style::Bold => "1",
            Style::Id => "35",
            Style::Added => "32",
            Style::Deleted => "31",
            Style::Changed => "33",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
