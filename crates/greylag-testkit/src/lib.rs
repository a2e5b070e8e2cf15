//! Seeded virtual network and data-driven transcripts for machines that take inputs and yield effects.
