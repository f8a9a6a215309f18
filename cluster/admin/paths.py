"""The beginnings of the admin's paths. Words in braces are filled with the parts of a request."""

NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC_PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION_PATH = TOPIC_PATH + "/subscription/{subscription}"
SCHEMA_PATH = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
