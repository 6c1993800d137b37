// What the examples of cuObjClient's page leave to the reader: a server, the control path to it,
// and CUDA. capi/tests/cuobj_page.sh makes the files that are included here of the page's text.
#include "../cpp/cuobj_server.hpp"

#include <cassert>
#include <fstream>
#include <sstream>

#include <fabricast_cuobj.hpp>
using namespace fabricast::cuobj;

static object_thread *server;

struct MyContext {
    object_thread *server_conn = server;
};

static ssize_t send_request_to_server(object_thread *conn, const char *operation, size_t size,
                                      loff_t offset, const char *rdma_desc)
{
    return conn->ask(std::strcmp(operation, "GET") == 0, size, offset, rdma_desc);
}

#include "example_2.inc"

static void basic_use()
{
    const int before = server->asked();
#include "example_1.inc"
    CHECK(result == 1024 && server->asked() == before + 2);
    CHECK(client.isConnected());
}

static void device_memory(cuObjClient &client)
{
    const int before = server->asked();
    MyContext ctx;
#include "example_3.inc"
    CHECK(server->asked() == before + 1);
}

static void token(cuObjClient &client)
{
#include "example_4.inc"
    CHECK(err == CU_OBJ_SUCCESS && std::strlen("CUOBJ") == sizeof OBJ_RDMA_V1 - 1);
}

static void telemetry(CUObjOps_t &ops)
{
    {
#include "example_5.inc"
    }
    std::ifstream log("cuobj_client.log");
    std::stringstream said;
    said << log.rdbuf();
    CHECK(said.str().find("objects, client") != std::string::npos);
}

int main()
{
    const fabricast::fabric fabric = open_cuobj_fabric(0);
    object_thread its(fabric);
    server = &its;
    const bool has_cuda = fake_cuda::load();
    basic_use();
    CUObjOps_t ops = {my_get_callback, my_put_callback};
    telemetry(ops);
    cuObjClient client(ops);
    token(client);
    if (has_cuda)
        device_memory(client);
    else
        std::printf("SKIPPED: memory of GPUs: the fake driver can't be built\n");
    std::printf("cuobj_page: ok\n");
}
