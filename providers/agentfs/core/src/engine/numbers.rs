//! Numbers are given out once: before too many are that the base does not count, it counts them anew.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::{lock, read_lock, write_lock};

impl Engine {
    /// Before a line is begun, or a snapshot taken.
    pub(super) fn room_for_numbers(&self) -> Result<()> {
        if !read_lock(&self.state).has_few_numbers() {
            return Ok(());
        }
        let counted = self.count_if_few();
        // As long as there are some, the next one tries again.
        read_lock(&self.state).need_numbers(2).or(counted)
    }

    /// Who was waited for may have counted them; and on a disk without room the writers need what there is.
    fn count_if_few(&self) -> Result<()> {
        let _one = lock(&self.checkpointing);
        if !read_lock(&self.state).has_few_numbers() {
            return Ok(());
        }
        if self.disk_free()? < 1 << 20 {
            return Err(Error::NoSpace);
        }
        self.count_alone()
    }

    /// Has the base count which numbers are next, without the rows of the log.
    #[cfg(test)]
    pub(super) fn count_numbers(&self) -> Result<()> {
        let _one = lock(&self.checkpointing);
        self.count_alone()
    }

    fn count_alone(&self) -> Result<()> {
        self.lost_nothing()?;
        let next = read_lock(&self.state).next;
        let rows = next.rows();
        self.base.commit(rows.iter().map(|(row, value)| (row.as_slice(), Some(value.as_slice()))))?;
        let fresh = Arc::new(self.base.rows()?);
        let mut state = write_lock(&self.state);
        state.layers.thaw(fresh);
        state.counted(next);
        Ok(())
    }
}
