//! The provider contract as tests that run against any provider.
