"""The official client's module of table views: `magnetar.tableview` is `pulsar.tableview`."""

from .client.blocking.table_view import TableView

__all__ = ["TableView"]
