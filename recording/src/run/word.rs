//! What the process that records tells the monitor while the command runs, over the socket between them: words of one size.

use std::os::fd::OwnedFd;

use rustix::io::{read, write};
use rustix::termios::{ControlModes, InputModes, LocalModes, OutputModes, SpecialCodeIndex, Termios};

/// Which word it is, four sets of modes, and two numbers.
const SIZE: usize = 1 + 4 * 4 + 2;

/// A word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// The pty is hung up, by who goes on. Said before it is so.
    HangsUp,
    /// The terminal, which had these modes, has none of its own. Said before it is so.
    Takes(Modes),
    /// That is so no more: they were given back, or another job has the terminal.
    Leaves,
}

/// What a terminal without modes of its own has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Modes {
    sets: [u32; 4],
    /// So many bytes make a read return, and so many tenths of a second.
    reads: [u8; 2],
}

impl Modes {
    /// Those of a terminal.
    pub(super) fn of(terminal: &Termios) -> Self {
        let codes = &terminal.special_codes;
        Self {
            sets: [
                terminal.input_modes.bits(),
                terminal.output_modes.bits(),
                terminal.control_modes.bits(),
                terminal.local_modes.bits(),
            ],
            reads: [codes[SpecialCodeIndex::VMIN], codes[SpecialCodeIndex::VTIME]],
        }
    }

    /// The terminal with these; what is not of them, its characters for keys for instance, stays.
    pub(super) fn given_to(self, terminal: &Termios) -> Termios {
        let mut given = terminal.clone();
        let [input, output, control, local] = self.sets;
        given.input_modes = InputModes::from_bits_retain(input);
        given.output_modes = OutputModes::from_bits_retain(output);
        given.control_modes = ControlModes::from_bits_retain(control);
        given.local_modes = LocalModes::from_bits_retain(local);
        [given.special_codes[SpecialCodeIndex::VMIN], given.special_codes[SpecialCodeIndex::VTIME]] = self.reads;
        given
    }
}

impl Word {
    /// Says it. Who is gone need not hear it.
    pub(super) fn say(self, to: &OwnedFd) {
        let mut bytes = [0; SIZE];
        bytes[0] = match self {
            Self::HangsUp => 0,
            Self::Takes(_) => 1,
            Self::Leaves => 2,
        };
        if let Self::Takes(Modes { sets, reads }) = self {
            for (place, set) in bytes[1..].chunks_exact_mut(4).zip(sets) {
                place.copy_from_slice(&set.to_le_bytes());
            }
            bytes[SIZE - 2..].copy_from_slice(&reads);
        }
        let _ = write(to, &bytes);
    }

    /// The next one, which is there; none if nobody says any more.
    pub(super) fn hear(from: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; SIZE];
        if read(from, &mut bytes) != Ok(SIZE) {
            return None;
        }
        match bytes[0] {
            0 => Some(Self::HangsUp),
            1 => {
                let set = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                Some(Self::Takes(Modes { sets: [set(1), set(5), set(9), set(13)], reads: [bytes[17], bytes[18]] }))
            }
            2 => Some(Self::Leaves),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Terminal, pty};

    #[test]
    fn words_come_as_they_were_said_and_modes_as_they_were_taken() {
        let pty = pty::open(&Terminal::of_process()).unwrap();
        let mut before = rustix::termios::tcgetattr(&pty.theirs).unwrap();
        before.special_codes[SpecialCodeIndex::VTIME] = 7;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let said = [Word::Takes(Modes::of(&before)), Word::Leaves, Word::HangsUp];
        let (to, from) = (OwnedFd::from(ours), OwnedFd::from(theirs));
        said.into_iter().for_each(|word| word.say(&to));
        drop(to);
        assert_eq!([(); 3].map(|()| Word::hear(&from)), said.map(Some));
        assert_eq!(Word::hear(&from), None);
        let mut raw = before.clone();
        raw.make_raw();
        assert_ne!(Modes::of(&raw), Modes::of(&before));
        assert_eq!(Modes::of(&Modes::of(&before).given_to(&raw)), Modes::of(&before));
    }
}
