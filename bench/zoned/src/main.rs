use canopydb as _; use fjall as _; use heed as _; use redb as _; fn main() {}
