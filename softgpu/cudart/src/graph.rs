//! Graphs, beyond what the driver does in the same words: nodes made of what the runtime names otherwise.

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraphNode};
use cudarc::runtime::sys::{cudaGraphNode_t, cudaKernelNodeParams, cudaMemsetParams};

use crate::abi::{Address, ConstAddress, Context, Graph, Host, In, Node, Out, Read, Value};
use crate::copy::{self, Kind, Way};
use crate::driver::Driver;
use crate::error::Answer;
use crate::register;

/// The nodes that a new one comes after.
pub type Nodes = Read<CUgraphNode, cudaGraphNode_t>;

impl Value for cudaKernelNodeParams {
    type Driver = ();
    type Runtime = cudaKernelNodeParams;
}

/// The current context, in which a new node's work will be done.
fn current(driver: &Driver) -> Answer<Context> {
    let mut context = Context::NULL;
    driver.cuCtxGetCurrent(Out::to(&mut context))?;
    Ok(context)
}

/// `cudaGraphAddKernelNode`
pub fn add_kernel(
    driver: &Driver,
    out: Out<Node>,
    graph: Graph,
    after: Nodes,
    count: usize,
    parameters: In<cudaKernelNodeParams>,
) -> Answer {
    let given = parameters.get();
    let kernel = register::find(driver, Host(given.func as usize))?;
    let parameters = CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::null_mut(),
        gridDimX: given.gridDim.x,
        gridDimY: given.gridDim.y,
        gridDimZ: given.gridDim.z,
        blockDimX: given.blockDim.x,
        blockDimY: given.blockDim.y,
        blockDimZ: given.blockDim.z,
        sharedMemBytes: given.sharedMemBytes,
        kernelParams: given.kernelParams,
        extra: given.extra,
        kern: kernel.0 as *mut _,
        ctx: current(driver)?.0 as *mut _,
    };
    driver.cuGraphAddKernelNode(out, graph, after, count, In::to(&parameters))
}

/// `cudaGraphAddMemcpyNode1D`
#[expect(clippy::too_many_arguments, reason = "the runtime's signature, and the driver")]
pub fn add_copy(
    driver: &Driver,
    out: Out<Node>,
    graph: Graph,
    after: Nodes,
    count: usize,
    to: Address,
    from: ConstAddress,
    bytes: usize,
    kind: Kind,
) -> Answer {
    let copy = copy::row(to, from, bytes, Way::of(kind)?);
    driver.cuGraphAddMemcpyNode(out, graph, after, count, In::to(&copy), current(driver)?)
}

/// `cudaGraphAddMemsetNode`
pub fn add_memset(
    driver: &Driver,
    out: Out<Node>,
    graph: Graph,
    after: Nodes,
    count: usize,
    memset: Read<CUDA_MEMSET_NODE_PARAMS, cudaMemsetParams>,
) -> Answer {
    driver.cuGraphAddMemsetNode(out, graph, after, count, memset, current(driver)?)
}
