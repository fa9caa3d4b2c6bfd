/* Stream captures, and the launch of what was captured. */
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
int cuGraphLaunch(void *executable, void *stream);
int cuGraphExecDestroy(void *executable);
int cuGraphDestroy(void *graph);

/* CUstreamCaptureMode */
#define THREAD_LOCAL 1
#define RELAXED 2

/* Ends the stream's capture, and launches it there. */
static int launch_captured(void *stream)
{
    void *graph, *executable;

    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuGraphExecDestroy(executable));
    return cuGraphDestroy(graph);
}
