//! A stage that loads still read is given back, loads from a stage that only `wgmma` reads, and loads from one whose loads have ended.
use warpsmith_dsl::pipeline::{AsyncProxy, Consumer, FullStage, GenericProxy};
use warpsmith_dsl::shared::SharedAddress;

fn place(index: u32) -> SharedAddress {
    SharedAddress::dynamic().offset(index * 1024)
}

unsafe fn give_back_what_loads_read(consumer: &Consumer<4, 1, GenericProxy>, stage: FullStage<GenericProxy>) {
    let _ = stage.address(place);
    consumer.release(stage);
}

unsafe fn load_what_products_read(consumer: &Consumer<4, 1, AsyncProxy>, stage: FullStage<AsyncProxy>) {
    let _ = stage.address(place);
    consumer.release(stage);
}

unsafe fn load_after_the_end(consumer: &Consumer<4, 1, GenericProxy>, stage: FullStage<GenericProxy>) {
    let mut loaded = [0.0; 4];
    // SAFETY: it does not compile.
    unsafe { consumer.release(stage.end_loads(&mut loaded)) };
    let _ = stage.address(place);
}

fn main() {}
