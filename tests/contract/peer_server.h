/* peer_server.h: shared by the private servers of the sink tests. */
#ifndef TESTS_CONTRACT_PEER_SERVER_H
#define TESTS_CONTRACT_PEER_SERVER_H

/* peer_server_folder creates a folder from a template that ends with six X, for a server that runs
 * as nobody if we are root. */
void peer_server_folder(char dir[64], const char *pattern);
/* peer_server_port returns a port below those that the kernel assigns to clients, so that no client
 * occupies it by chance while the server is down. */
int peer_server_port(void);
/* peer_server_certificates creates ca.crt, server.crt and server.key in a folder, for 127.0.0.1 and
 * localhost. */
void peer_server_certificates(const char *dir);
/* peer_server_become_nobody is for the child process that will be the server. */
void peer_server_become_nobody(void);

#endif
