//! A machine file and a program become a running model.
