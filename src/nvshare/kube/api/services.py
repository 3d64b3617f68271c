"""The kubelet's services by name: handlers for who serves them, callables for who uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from nvshare.kube.api import deviceplugin_pb2 as deviceplugin
from nvshare.kube.api import podresources_pb2 as podresources

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"  # in the directory of device plugins
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

# A plugin's message may be as large as a Go client takes unless told otherwise, and the kubelet's is not told.
MAX_MESSAGE = 4 << 20
_MAX_RECEIVED = 64 << 20  # from the kubelet: a list of all pods' devices, or of all that are free
_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_RECEIVED),
    ("grpc.max_send_message_length", _MAX_RECEIVED),
    ("grpc.default_authority", "localhost"),  # not the path of the socket, which Go servers do not take
]
SERVER_OPTIONS = _OPTIONS[:2]
CHANNEL_OPTIONS = [*_OPTIONS, ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True)
class Method:
    request: type[Message]
    response: type[Message]
    streams: bool = False  # the answer is a stream


@dataclass(frozen=True)
class Service:
    name: str
    methods: Mapping[str, Method]

    def handler(self, servicer: object) -> grpc.GenericRpcHandler:
        """Serves the methods that this object has; the others answer UNIMPLEMENTED."""
        handlers = {}
        for name, method in self.methods.items():
            implementation = getattr(servicer, name, None)
            if implementation is None:
                continue
            make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
            handlers[name] = make(
                implementation,
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(self.name, handlers)

    def bind(self, channel: Any, name: str) -> Any:
        """The method as a callable, on a channel of either kind (blocking or asyncio)."""
        method = self.methods[name]
        make = channel.unary_stream if method.streams else channel.unary_unary
        return make(
            f"/{self.name}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )


REGISTRATION = Service("v1beta1.Registration", {"Register": Method(deviceplugin.RegisterRequest, deviceplugin.Empty)})

DEVICE_PLUGIN = Service(
    "v1beta1.DevicePlugin",
    {
        "GetDevicePluginOptions": Method(deviceplugin.Empty, deviceplugin.DevicePluginOptions),
        "ListAndWatch": Method(deviceplugin.Empty, deviceplugin.ListAndWatchResponse, streams=True),
        "GetPreferredAllocation": Method(
            deviceplugin.PreferredAllocationRequest, deviceplugin.PreferredAllocationResponse
        ),
        "Allocate": Method(deviceplugin.AllocateRequest, deviceplugin.AllocateResponse),
        "PreStartContainer": Method(deviceplugin.PreStartContainerRequest, deviceplugin.PreStartContainerResponse),
    },
)

POD_RESOURCES = Service(
    "v1.PodResourcesLister",
    {"List": Method(podresources.ListPodResourcesRequest, podresources.ListPodResourcesResponse)},
)
