//! What a machine is made of: machine files parsed, checked, drawn, discovered and measured.
