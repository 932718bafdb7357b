//! Where the user's repository stands, and keeping the objects that it names.
