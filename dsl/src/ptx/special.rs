//! Special registers: where a thread is in its block and its grid.

special_register!(tid_x, "%tid.x", "thread index within the block, along x");
/// [`tid_x`], read anew: the compiler would keep it in a register.
#[inline(always)]
#[must_use]
pub fn tid_x_anew() -> u32 {
    let value;
    // SAFETY: it reads a special register.
    unsafe { instruction!("mov.u32 {0}, %tid.x;", out(reg32) value, options(nomem, nostack)) };
    value
}

special_register!(tid_y, "%tid.y", "thread index within the block, along y");
special_register!(tid_z, "%tid.z", "thread index within the block, along z");
special_register!(ntid_x, "%ntid.x", "number of threads in the block, along x");
special_register!(ntid_y, "%ntid.y", "number of threads in the block, along y");
special_register!(ntid_z, "%ntid.z", "number of threads in the block, along z");
special_register!(ctaid_x, "%ctaid.x", "block index within the grid, along x");
special_register!(ctaid_y, "%ctaid.y", "block index within the grid, along y");
special_register!(ctaid_z, "%ctaid.z", "block index within the grid, along z");
special_register!(nctaid_x, "%nctaid.x", "number of blocks in the grid, along x");
special_register!(nctaid_y, "%nctaid.y", "number of blocks in the grid, along y");
special_register!(nctaid_z, "%nctaid.z", "number of blocks in the grid, along z");
special_register!(laneid, "%laneid", "lane of the thread within its warp");
