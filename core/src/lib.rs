//! Timelines, sessions, restore, leases, retention: everything but the terminal.
