//! Tests of the map of sorted runs on emulated devices. All modules are in one test program, to link the map once.

mod damage;
mod full;
mod model;
mod power_cuts;
mod support;
