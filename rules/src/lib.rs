//! Which files of a workspace are ignored, and which of those are captured all the same.
